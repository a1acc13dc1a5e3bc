// SPDX-License-Identifier: Apache-2.0
// What the agreement costs the leader of a large communicator. The leader is deft's own, in this
// process; the other ranks are simulated in a second one (members.h), over loopback. Prints a table
// and, with --json, one line of JSON for each size.
//
// usage: agreement_scale [--ranks N,N,...] [--seconds S] [--json FILE]
// exit code: 0 all bars are met, 1 one is missed, 2 wrong usage, 4 the run failed
#include <poll.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/build_version.h"
#include "perf/agreement/members.h"
#include "shim/agreement/council.h"

namespace {

using namespace deft;
using namespace std::chrono_literals;
using agreement::Clock;
using agreement_scale::Members;
using agreement_scale::Shape;

constexpr int kRanksPerHost = 8;
constexpr int kVotes = 11;
constexpr std::size_t kBody = 20'000;
constexpr std::size_t kReport = 72;  // of the guard (guard::kReportBytes)
constexpr int kReporters = 64;       // the guard's too
constexpr auto kReportEvery = 100ms;
constexpr auto kDeadline = 120s;

struct Bars {
    double verdict_s = 5;
    double vote_s = 0.2;
    double steady = 0.02;
    double mebibytes = 64;
    double descriptors = 2000;
};

struct Figures {
    int ranks = 0;
    double verdict_s = 0;
    double verdict_cpu_s = 0;
    std::vector<double> votes_s;  // from the proposal until every rank has the decision
    double vote_cpu_s = 0;        // the leader's, each
    double steady = 0;            // of a core, while the guard's reports come
    double mebibytes = 0;         // the most that the process had in memory
    double descriptors = 0;

    double vote_s() const {
        std::vector<double> sorted = votes_s;
        std::sort(sorted.begin(), sorted.end());
        return sorted.empty() ? 0 : sorted[sorted.size() / 2];
    }
};

agreement::Terms terms() {
    agreement::Terms made;
    made.nccl_version = 22809;
    made.settings = "DEFT_MODE=deft";
    made.timeout = kDeadline;
    return made;
}

bool read_all(int fd, void* data, std::size_t size) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t got = ::read(fd, at, size);
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

void tell(int fd, char word) {
    if (::write(fd, &word, 1) != 1) {
        std::exit(4);
    }
}

// ---- the simulated ranks
// -------------------------------------------------------------------------

// Commands: c connect, and say when all were told On; v say when all have the next decision; r
// report until the next command; anything else: stop reporting.
[[noreturn]] void simulate(const Shape& shape, int commands, int answers) {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    std::array<std::byte, agreement::wire::kTrailerBytes> data;
    agreement::wire::Trailer trailer;
    if (!read_all(commands, data.data(), data.size()) ||
        agreement::wire::decode(data, trailer) != agreement::wire::Decoded::Ok) {
        std::_Exit(4);
    }
    agreement::wire::Hello hello;
    hello.nonce = trailer.nonce;
    hello.nranks = static_cast<std::uint32_t>(shape.ranks);
    hello.nccl_version = terms().nccl_version;
    hello.deft_version = build_version();
    hello.process = 1;
    hello.host = "simulated";
    hello.settings = terms().settings;
    Members members(shape, trailer, hello);
    int decided = 0;
    bool reporting = false;
    auto next_report = Clock::now();
    for (;;) {
        pollfd entry{commands, POLLIN, 0};
        if (::poll(&entry, 1, 0) > 0) {
            char command = 0;
            if (!read_all(commands, &command, 1)) {
                std::_Exit(0);
            }
            reporting = command == 'r';
            if (command == 'c') {
                while (members.connect_some()) {
                    members.turn(0);
                }
            }
        }
        members.turn(reporting ? 5 : 1);
        if (members.lost() != 0) {
            std::fprintf(stderr, "agreement_scale: the leader has ended a connection\n");
            std::_Exit(4);
        }
        if (members.verdicts() == shape.ranks - 1 && decided == 0) {
            tell(answers, 'c');
            decided = 1;
        }
        if (members.decisions() >= decided * (shape.ranks - 1) && decided > 0) {
            tell(answers, 'v');
            ++decided;
        }
        if (reporting && Clock::now() >= next_report) {
            members.report();
            next_report = Clock::now() + kReportEvery;
        }
    }
}

// ---- the leader
// ----------------------------------------------------------------------------------

class Leader final : public agreement::Member {
public:
    agreement::Answer prepare(const agreement::Proposal& /*proposal*/) noexcept override {
        return agreement::Answer::Yes;
    }
    void decided(std::uint64_t /*serial*/, bool commit) noexcept override {
        commits += commit ? 1 : 0;
    }
    void heard(int /*rank*/, std::span<const std::byte> /*report*/) noexcept override { ++reports; }
    std::atomic<int> commits{0};
    std::atomic<std::uint64_t> reports{0};
};

double seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

double cpu_seconds() {
    rusage used{};
    (void)::getrusage(RUSAGE_SELF, &used);
    const auto value = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return value(used.ru_utime) + value(used.ru_stime);
}

double peak_mebibytes() {
    rusage used{};
    (void)::getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_maxrss) / 1024;
}

double descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<double>(std::distance(begin(all), end(all)));
}

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "agreement_scale: %s\n", what);
    std::_Exit(4);
}

void expect(int answers, char word) {
    char answer = 0;
    if (!read_all(answers, &answer, 1) || answer != word) {
        fail("the simulated ranks have ended");
    }
}

// In a process of its own, so that memory and descriptors are of one size.
Figures lead(const Shape& shape, double steady_s, int commands, int answers) {
    deft_nccl_unique_id_t id{};
    std::string why;
    if (!agreement::write_trailer(id, why)) {
        fail(why.c_str());
    }
    if (::write(commands, id.internal + agreement::wire::kTrailerAt,
                agreement::wire::kTrailerBytes) !=
        static_cast<ssize_t>(agreement::wire::kTrailerBytes)) {
        fail("no simulated ranks");
    }
    Figures figures;
    figures.ranks = shape.ranks;
    Leader leader;
    double cpu = cpu_seconds();
    auto begun = Clock::now();
    tell(commands, 'c');
    const agreement::CouncilRef council = agreement::join(id, shape.ranks, 0, terms());
    council->attach(&leader);
    council->created();
    if (council->wait_verdict(begun + kDeadline) != agreement::Verdict::On) {
        fail(council->reason().c_str());
    }
    expect(answers, 'c');
    figures.verdict_s = seconds(Clock::now() - begun);
    figures.verdict_cpu_s = cpu_seconds() - cpu;
    cpu = cpu_seconds();
    for (int vote = 1; vote <= kVotes; ++vote) {
        agreement::Proposal proposal;
        proposal.serial = static_cast<std::uint64_t>(vote);
        proposal.switch_call = 100;
        proposal.body.resize(kBody);
        begun = Clock::now();
        while (!council->propose(proposal)) {
            std::this_thread::sleep_for(100us);  // the last one is just being ended
        }
        expect(answers, 'v');
        figures.votes_s.push_back(seconds(Clock::now() - begun));
    }
    figures.vote_cpu_s = (cpu_seconds() - cpu) / kVotes;
    tell(commands, 'r');
    std::this_thread::sleep_for(1s);
    const std::uint64_t before = leader.reports;
    cpu = cpu_seconds();
    begun = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(steady_s));
    figures.steady = (cpu_seconds() - cpu) / seconds(Clock::now() - begun);
    if (leader.commits != kVotes || leader.reports == before || !council->open()) {
        fail("not every vote was committed, or no report has come");
    }
    figures.mebibytes = peak_mebibytes();
    figures.descriptors = descriptors();
    return figures;
}

Figures measure(const Shape& shape, double steady_s) {
    int commands[2];
    int answers[2];
    if (::pipe(commands) != 0 || ::pipe(answers) != 0) {
        fail("no pipes");
    }
    const pid_t members = ::fork();
    if (members == 0) {
        ::close(commands[1]);
        ::close(answers[0]);
        simulate(shape, commands[0], answers[1]);
    }
    ::close(commands[0]);
    ::close(answers[1]);
    const Figures figures = lead(shape, steady_s, commands[1], answers[0]);
    ::close(commands[1]);
    (void)::waitpid(members, nullptr, 0);
    return figures;
}

// ---- what is printed
// -----------------------------------------------------------------------------

bool met(const Figures& f) {
    const Bars bars;
    return f.verdict_s <= bars.verdict_s && f.vote_s() <= bars.vote_s && f.steady <= bars.steady &&
           f.mebibytes <= bars.mebibytes && f.descriptors <= bars.descriptors;
}

void print(const Figures& f, std::FILE* json) {
    std::printf("| %d | %.2f s | %.2f s | %.0f ms | %.0f ms | %.2f %% | %.1f MiB | %.0f |\n",
                f.ranks, f.verdict_s, f.verdict_cpu_s, 1e3 * f.vote_s(), 1e3 * f.vote_cpu_s,
                100 * f.steady, f.mebibytes, f.descriptors);
    std::fflush(stdout);
    if (json == nullptr) {
        return;
    }
    utsname machine{};
    (void)::uname(&machine);
    std::fprintf(json,
                 "{\"deft\": \"%s\", \"kernel\": \"%s\", \"cpus\": %ld, \"ranks\": %d, "
                 "\"verdict_s\": %.4f, \"verdict_cpu_s\": %.4f, \"vote_cpu_s\": %.5f, "
                 "\"steady_core\": %.5f, \"peak_mib\": %.1f, \"descriptors\": %.0f, \"votes_s\": [",
                 build_version(), machine.release, ::sysconf(_SC_NPROCESSORS_ONLN), f.ranks,
                 f.verdict_s, f.verdict_cpu_s, f.vote_cpu_s, f.steady, f.mebibytes, f.descriptors);
    for (std::size_t i = 0; i < f.votes_s.size(); ++i) {
        std::fprintf(json, "%s%.5f", i == 0 ? "" : ", ", f.votes_s[i]);
    }
    std::fprintf(json, "]}\n");
    std::fflush(json);
}

[[noreturn]] void usage() {
    std::fprintf(stderr, "usage: agreement_scale [--ranks N,N,...] [--seconds S] [--json FILE]\n");
    std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
    std::string sizes = "1000,4000,10000";
    double steady_s = 10;
    std::FILE* json = nullptr;
    for (int i = 1; i < argc; i += 2) {
        const std::string option = argv[i];
        if (i + 1 == argc) {
            usage();
        } else if (option == "--ranks") {
            sizes = argv[i + 1];
        } else if (option == "--seconds") {
            steady_s = std::atof(argv[i + 1]);
        } else if (option != "--json" || (json = std::fopen(argv[i + 1], "w")) == nullptr) {
            usage();
        }
    }
    ::setenv("DEFT_INTERFACES", "lo", 1);
    std::printf(
        "| ranks | verdict | leader's CPU | vote | leader's CPU | steady state, of a core | memory "
        "| "
        "descriptors |\n|---|---|---|---|---|---|---|---|\n");
    std::fflush(stdout);
    bool good = true;
    for (const char* at = sizes.c_str(); *at != '\0'; at += *at == ',' ? 1 : 0) {
        char* end = nullptr;
        const int ranks = static_cast<int>(std::strtol(at, &end, 10));
        if (end == at || ranks < 2) {
            usage();
        }
        at = end;
        const pid_t child = ::fork();
        if (child == 0) {
            const Figures figures = measure({ranks, kRanksPerHost, kReport, kReporters}, steady_s);
            print(figures, json);
            std::_Exit(met(figures) ? 0 : 1);
        }
        int status = 0;
        (void)::waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) {
            return 4;
        }
        good = good && WEXITSTATUS(status) == 0;
    }
    return good ? 0 : 1;
}
