// SPDX-License-Identifier: Apache-2.0
// netperf: measures and checks an NCCL network plugin between two processes.
//
// The parent only waits and prints; each child lives in its namespace. Exit status 0, 1 (the plugin
// failed), 2 (wrong use).
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <string>

#include "perf/netperf/control.h"
#include "perf/netperf/options.h"
#include "perf/netperf/side.h"

namespace netperf {
namespace {

using json = nlohmann::json;

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

// Below 0: to none.
void bind_to(int number) {
    if (number >= 0) {
        cpu_set_t cpu;
        CPU_ZERO(&cpu);
        CPU_SET(number, &cpu);
        sched_setaffinity(0, sizeof(cpu), &cpu);
    }
}

template <class Report>
void measure(Side& side, const Options& options, const Report& report) {
    report(side.describe());
    if (options.verify && !options.steady) {
        report(side.verify());
    }
    if (options.steady) {
        report(side.steady(options.sizes.front(), options.depths.front()));
    }
    if (options.idle) {
        report(side.idle());
    }
    for (size_t i = 0; options.bandwidth && i < options.sizes.size(); ++i) {
        for (const int depth : options.depths) {
            report(side.bandwidth(options.sizes[i], depth));
        }
    }
    for (size_t i = 0; options.latency && i < options.latency_sizes.size(); ++i) {
        report(side.latency(options.latency_sizes[i]));
    }
}

// What a child does from fork to exit. Results and errors go to the parent.
int child(const Options& options, int side, deft::UniqueFd peer, deft::UniqueFd parent_fd) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Control control(std::move(peer));
    Control parent(std::move(parent_fd));
    const auto report = [&](const json& result) {
        if (side == 0) {
            parent.send(result);
        }
    };
    bind_to(options.cpus[side]);
    std::unique_ptr<Side> made;
    const auto error_of = [&](const std::exception& error, int status) {
        return json{{"kind", "error"},
                    {"text", error.what()},
                    {"status", status},
                    {"side", side},
                    {"at_s", std::chrono::duration<double>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count()},
                    {"progress", made ? made->progress() : json()}};
    };
    try {
        made = std::make_unique<Side>(options, side, &control);
        measure(*made, options, report);
        made->close();
        parent.send({{"kind", "end"}});
        return 0;
    } catch (const PeerGone&) {
        return kFailed;  // the other side says why
    } catch (const UsageError& error) {
        parent.send(error_of(error, kWrongUse));
        return kWrongUse;
    } catch (const std::exception& error) {
        parent.send(error_of(error, kFailed));
        return kFailed;
    }
}

void print(const json& result) {
    const std::string kind = result["kind"];
    if (kind == "environment") {
        const json& network = result["networks"][0];
        fmt::print("{} (v{}) from {}, {} device(s); {} cores, load {:.1f}\n",
                   network["name"].get<std::string>(), network["abi"].get<int>(),
                   network["file"].get<std::string>(), network["devices"].size(),
                   result["cores"].get<int>(), result["load_before"].get<double>());
    } else if (kind == "verify") {
        fmt::print("verify     {} messages up to {} on each connection, {} bytes checked: ok\n",
                   result["messages"].get<uint64_t>(), size_text(result["largest"]),
                   result["bytes_checked"].get<uint64_t>());
    } else if (kind == "bandwidth") {
        const json& rate = result["gbit_per_s"];
        // Messages without bytes have no price per byte.
        const json& price = result["cpu_s_per_gb"];
        fmt::print("bandwidth  {:>6} depth {:>2}  {:8.3f} Gbit/s ({:.3f} .. {:.3f})  {} CPU s/GB\n",
                   size_text(result["bytes"]), result["depth"].get<int>(),
                   rate["median"].get<double>(), rate["min"].get<double>(),
                   rate["max"].get<double>(),
                   price.is_null() ? "-" : fmt::format("{:.3f}", price["median"].get<double>()));
    } else if (kind == "latency") {
        const json& half = result["half_round_trip_us"];
        fmt::print(
            "latency    {:>6}  p50 {:.2f} p90 {:.2f} p99 {:.2f} max {:.1f} us half round trip "
            "({} rounds)\n",
            size_text(result["bytes"]), half["p50"].get<double>(), half["p90"].get<double>(),
            half["p99"].get<double>(), half["max"].get<double>(), result["rounds"].get<uint64_t>());
    }
    if (kind == "steady") {
        fmt::print("steady     {} messages of {} in {:.2f} s, longest gap {:.1f} ms\n",
                   result["messages"].get<uint64_t>(), size_text(result["bytes"]),
                   result["seconds"].get<double>(), result["longest_gap_ms"].get<double>());
    } else if (kind == "idle") {
        for (const json& side : result["sides"]) {
            fmt::print(
                "idle       {} connections: {} KiB more memory, {} descriptors, {:.3f} % of a "
                "core\n",
                result["connections"].get<int>(), side["memory_kib"].get<long>(),
                side["descriptors"].get<long>(), side["cpu_percent"].get<double>());
        }
    }
    std::fflush(stdout);
}

// The file of --json. Found out to be writable before anything runs, but what it holds stays until
// there is a first result: a wrong option costs nobody the figures of yesterday.
class ResultFile {
public:
    explicit ResultFile(const std::string& path) : path_(path) {
        if (path_.empty()) {
            return;
        }
        existed_ = access(path_.c_str(), F_OK) == 0;
        file_.open(path_, std::ios::app);
        if (!file_) {
            throw UsageError("--json " + path_ + ": cannot be written: " + strerror(errno));
        }
    }
    ~ResultFile() {
        if (!path_.empty() && !written_ && !existed_) {
            std::remove(path_.c_str());
        }
    }
    ResultFile(const ResultFile&) = delete;

    void write(const json& result) {
        if (path_.empty()) {
            return;
        }
        if (!written_) {
            file_.close();
            file_.open(path_, std::ios::trunc);
            written_ = true;
        }
        file_ << result.dump() << std::endl;
        if (!file_) {
            throw std::runtime_error("--json " + path_ + ": " + strerror(errno));
        }
    }

private:
    const std::string path_;
    std::ofstream file_;
    bool existed_ = false;
    bool written_ = false;
};

struct Child {
    pid_t pid = -1;
    std::unique_ptr<Control> control;
    deft::UniqueFd watch;
    bool ended = false;
};

// Both children, from fork to exit.
class Children {
public:
    explicit Children(const Options& options) : options_(options), file_(options.json) {
        int pair[2];
        int reports[2][2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, reports[0]) != 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, reports[1]) != 0) {
            throw std::runtime_error(std::string("socketpair: ") + strerror(errno));
        }
        for (int side = 0; side < 2; ++side) {
            children_[side].pid = fork();
            if (children_[side].pid == 0) {
                ::close(pair[1 - side]);
                ::close(reports[0][0]);
                ::close(reports[1][0]);
                ::close(reports[1 - side][1]);
                // exit, not _exit: what watches the plugin (sanitizers, coverage) ends properly.
                std::exit(child(options, side, deft::UniqueFd(pair[side]),
                                deft::UniqueFd(reports[side][1])));
            }
        }
        ::close(pair[0]);
        ::close(pair[1]);
        for (int side = 0; side < 2; ++side) {
            ::close(reports[side][1]);
            children_[side].control = std::make_unique<Control>(deft::UniqueFd(reports[side][0]));
            children_[side].watch.reset(dup(reports[side][0]));
        }
    }

    // The exit code.
    int run() {
        while (!(children_[0].ended && children_[1].ended) && listen()) {
        }
        for (Child& one : children_) {
            reap(one);
        }
        if (!error_.empty()) {
            fmt::print(stderr, "netperf: {}\n", error_);
        }
        return status_;
    }

private:
    // False: the grace after the first error is over.
    bool listen() {
        pollfd waits[2];
        for (int side = 0; side < 2; ++side) {
            waits[side] = {children_[side].ended ? -1 : children_[side].watch.get(), POLLIN, 0};
        }
        const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
            end_ - std::chrono::steady_clock::now());
        if (!error_.empty() && rest.count() <= 0) {
            return false;
        }
        poll(waits, 2, error_.empty() ? -1 : static_cast<int>(rest.count()) + 1);
        for (int side = 0; side < 2; ++side) {
            if (waits[side].revents != 0) {
                hear(children_[side]);
            }
        }
        return true;
    }

    void hear(Child& one) {
        json message;
        try {
            message = one.control->receive();
        } catch (const PeerGone&) {
            one.ended = true;  // its exit status tells
            return;
        }
        if (message["kind"] == "error") {
            note_error(message);
            one.ended = true;
        } else if (message["kind"] == "end") {
            one.ended = true;
        } else {
            print(message);
            file_.write(message);
        }
    }

    void note_error(const json& message) {
        if (error_.empty()) {
            error_ = message["text"];
            status_ = message["status"];
            end_ = std::chrono::steady_clock::now() +
                   std::chrono::microseconds(static_cast<int64_t>(options_.grace_s * 1e6));
        }
        if (options_.grace_s > 0) {
            file_.write(message);
        }
    }

    void reap(const Child& one) {
        if (!error_.empty()) {
            kill(one.pid, SIGKILL);
        }
        int how = 0;
        waitpid(one.pid, &how, 0);
        if (!error_.empty() || (WIFEXITED(how) && WEXITSTATUS(how) == 0)) {
            return;
        }
        status_ = kFailed;
        if (WIFSIGNALED(how)) {
            fmt::print(stderr, "netperf: a process died of signal {} ({})\n", WTERMSIG(how),
                       strsignal(WTERMSIG(how)));
        }
    }

    const Options& options_;
    ResultFile file_;
    Child children_[2];
    int status_ = 0;
    std::string error_;
    std::chrono::steady_clock::time_point end_{};  // of the grace after the first error
};

}  // namespace
}  // namespace netperf

int main(int argc, char** argv) {
    try {
        netperf::Options options;
        if (!netperf::parse_command_line(argc, argv, &options)) {
            return 0;
        }
        return netperf::Children(options).run();
    } catch (const netperf::UsageError& error) {
        fmt::print(stderr, "netperf: {}\n", error.what());
        return netperf::kWrongUse;
    } catch (const std::exception& error) {
        fmt::print(stderr, "netperf: {}\n", error.what());
        return netperf::kFailed;
    }
}
