// SPDX-License-Identifier: Apache-2.0
// A process of the job, which holds ranks of communicators and does what the test says. The test
// itself must not use the agreement: its children are forked while it has no threads.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>

#include "base/unique_fd.h"
#include "shim/agreement/service.h"
#include "tests/component/shim/agreement/council_scene.h"

namespace deft::agreement::test {

inline std::string to_hex(const deft_nccl_unique_id_t& id) {
    std::string out;
    for (const char byte : id.internal) {
        char digits[3];
        (void)std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
        out += digits;
    }
    return out;
}

inline deft_nccl_unique_id_t from_hex(const std::string& text) {
    deft_nccl_unique_id_t id{};
    for (std::size_t i = 0; i < sizeof(id.internal); ++i) {
        id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    }
    return id;
}

// Connections of this process, of a family, that have another end.
inline int connections(int family) {
    int count = 0;
    DIR* const folder = ::opendir("/proc/self/fd");
    while (const dirent* const entry = ::readdir(folder)) {
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        const int fd = std::atoi(entry->d_name);
        if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0) {
            count += storage.ss_family == family ? 1 : 0;
        }
    }
    ::closedir(folder);
    return count;
}

// Breaks all TCP connections of this process, as a network would: both ends get an error.
inline void break_connections() {
    for (int fd = 0; fd < 4096; ++fd) {
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0 &&
            storage.ss_family != AF_UNIX) {
            storage.ss_family = AF_UNSPEC;
            (void)::connect(fd, reinterpret_cast<sockaddr*>(&storage), length);
        }
    }
}

// What the process does: one line of words in, one line out.
class RankProcess {
public:
    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string what;
        words >> what;
        if (what == "make") {
            deft_nccl_unique_id_t id{};
            std::string why;
            return write_trailer(id, why) ? to_hex(id) : "none: " + why;
        }
        if (what == "set") {
            std::string name;
            std::string value;
            words >> name >> value;
            ::setenv(name.c_str(), value.c_str(), 1);
            return "ok";
        }
        if (what == "limit") {
            rlimit limit{};
            (void)::getrlimit(RLIMIT_NOFILE, &limit);
            words >> limit.rlim_cur >> limit.rlim_max;
            return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "ok" : "refused";
        }
        if (what == "pace") {
            int silence = 0;
            int back = 0;
            words >> silence >> back;
            pace() = {std::chrono::milliseconds(silence / 5), std::chrono::milliseconds(silence),
                      std::chrono::milliseconds(back)};
            return "ok";
        }
        if (what == "break") {
            break_connections();
            return "ok";
        }
        if (what == "direct") {
            std::size_t hosts = 0;
            words >> hosts;
            Service::process().keep_direct(hosts);
            return "ok";
        }
        if (what == "files") {
            rlimit limit{};
            (void)::getrlimit(RLIMIT_NOFILE, &limit);
            return std::to_string(limit.rlim_cur);
        }
        if (what == "spare") {
            std::vector<UniqueFd> more;
            do {
                more.emplace_back(::dup(0));
            } while (more.back());
            return std::to_string(more.size() - 1);
        }
        if (what == "tcp") {
            return std::to_string(connections(AF_INET) + connections(AF_INET6));
        }
        std::string name;
        words >> name;
        return of_council(what, name, words);
    }

private:
    struct Seat {
        Council* council = nullptr;
        Recorder member;
    };
    std::map<std::string, Seat> seats_;

    std::string join(Seat& seat, std::istringstream& words) {
        std::string id;
        int nranks = 0;
        int rank = 0;
        int timeout_ms = 60'000;
        words >> id >> nranks >> rank >> timeout_ms;
        Terms with = terms("same", std::chrono::milliseconds(timeout_ms));
        for (int again_ms = 0; words >> again_ms;) {
            with.again.push_back(std::chrono::milliseconds(again_ms));
        }
        seat.council = agreement::join(from_hex(id), nranks, rank, with).release();
        if (seat.council == nullptr) {
            return "none";
        }
        seat.council->attach(&seat.member);
        seat.council->created();
        return "ok";
    }

    std::string of_council(const std::string& what, const std::string& name,
                           std::istringstream& words) {
        Seat& seat = seats_[name];
        const auto wait = [](bool came) { return came ? std::string("ok") : std::string("never"); };
        std::uint64_t serial = 0;
        if (what == "join") {
            return join(seat, words);
        }
        Council& council = *seat.council;
        if (what == "on") {
            return wait(eventually([&] { return council.verdict() == Verdict::On; }));
        }
        if (what == "off") {
            return eventually([&] { return council.verdict() == Verdict::Off; }) ? council.reason()
                                                                                 : "never";
        }
        if (what == "open") {
            return council.open() ? "open" : "closed";
        }
        if (what == "closed") {
            return wait(eventually([&] { return !council.open(); }));
        }
        if (what == "reason") {
            return council.reason();
        }
        if (what == "later") {
            seat.member.answer_with({Answer::Later});
            return "ok";
        }
        if (what == "leave") {
            council.leave();
            return "ok";
        }
        if (what == "heard") {
            std::size_t count = 0;
            words >> count;
            if (!eventually([&] { return seat.member.heard().size() >= count; })) {
                return "never";
            }
            std::string all;
            for (const auto& [rank, report] : seat.member.heard()) {
                all += std::to_string(rank) + ":" + report + " ";
            }
            return all;
        }
        if (what == "report") {
            std::string report;
            words >> report;
            return council.report(bytes(report)) ? "ok" : "refused";
        }
        words >> serial;
        if (what == "wait") {
            int limit_ms = 0;
            words >> limit_ms;
            const Clock::duration limit =
                limit_ms > 0 ? std::chrono::milliseconds(limit_ms) : Clock::duration(kPatience);
            const Decision found = council.wait_decision(serial, Clock::now() + limit);
            return found == Decision::Commit   ? "commit"
                   : found == Decision::Cancel ? "cancel"
                                               : "lost";
        }
        if (what == "propose") {
            return wait(eventually([&] { return council.propose(proposal(serial)); }));
        }
        if (what == "asked") {
            return wait(eventually([&] { return !seat.member.asked().empty(); }));
        }
        if (what == "answer") {
            council.answer(serial, true);
            return "ok";
        }
        if (what == "decision") {
            return !eventually([&] { return seat.member.decisions().count(serial) == 1; }) ? "never"
                   : seat.member.decisions()[serial] ? "commit"
                                                     : "cancel";
        }
        return "unknown";
    }
};

// The test's end of it.
class RankChild {
public:
    RankChild() {
        int in[2];
        int out[2];
        EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
        EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(in[0], 0);
            ::dup2(out[1], 1);
            ::close(in[1]);
            ::close(out[0]);
            serve();
        }
        ::close(in[0]);
        ::close(out[1]);
        in_ = UniqueFd(in[1]);
        out_ = UniqueFd(out[0]);
    }
    RankChild(RankChild&&) = delete;
    ~RankChild() {
        signal(SIGCONT);
        signal(SIGKILL);
        (void)::waitpid(pid_, nullptr, 0);
    }

    // To kill(2) -1 is every process of the user.
    void signal(int number) const {
        if (pid_ > 0) {
            (void)::kill(pid_, number);
        }
    }
    // It has stopped when this returns.
    void stop() {
        signal(SIGSTOP);
        EXPECT_EQ(::waitpid(pid_, nullptr, WUNTRACED), pid_);
    }
    void die() {
        signal(SIGKILL);
        (void)::waitpid(pid_, nullptr, 0);
        pid_ = ::fork();  // something to wait for, in place of it
        if (pid_ == 0) {
            ::_exit(0);
        }
    }
    void say(const std::string& line) {
        const std::string text = line + "\n";
        EXPECT_EQ(::write(in_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    std::string hear() {
        std::string line;
        char c = 0;
        while (::read(out_.get(), &c, 1) == 1 && c != '\n') {
            line += c;
        }
        return line;
    }
    std::string ask(const std::string& line) {
        say(line);
        return hear();
    }

private:
    [[noreturn]] static void serve() {
        RankProcess process;
        std::string line;
        char c = 0;
        while (::read(0, &c, 1) == 1) {
            if (c != '\n') {
                line += c;
                continue;
            }
            const std::string answer = process.obey(line) + "\n";
            line.clear();
            (void)!::write(1, answer.data(), answer.size());
        }
        ::_exit(0);
    }
    pid_t pid_ = -1;
    UniqueFd in_;
    UniqueFd out_;
};

}  // namespace deft::agreement::test
