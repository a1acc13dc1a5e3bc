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
#include "perf/netperf/endpoint.h"
#include "perf/netperf/options.h"

namespace netperf {
namespace {

using json = nlohmann::json;

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

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
    if (options.cpus[side] >= 0) {
        cpu_set_t cpu;
        CPU_ZERO(&cpu);
        CPU_SET(options.cpus[side], &cpu);
        sched_setaffinity(0, sizeof(cpu), &cpu);
    }
    std::unique_ptr<Endpoint> made;
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
        made = std::make_unique<Endpoint>(options, side, &control);
        Endpoint& endpoint = *made;
        report(endpoint.describe());
        if (options.verify && !options.steady) {
            report(endpoint.verify());
        }
        if (options.steady) {
            report(endpoint.steady(options.sizes.front(), options.depths.front()));
        }
        if (options.idle) {
            report(endpoint.idle());
        }
        if (options.bandwidth) {
            for (const size_t bytes : options.sizes) {
                for (const int depth : options.depths) {
                    report(endpoint.bandwidth(bytes, depth));
                }
            }
        }
        if (options.latency) {
            for (const size_t bytes : options.latency_sizes) {
                report(endpoint.latency(bytes));
            }
        }
        endpoint.close();
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

int parent(const Options& options) {
    ResultFile file(options.json);
    int pair[2];
    int reports[2][2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, reports[0]) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, reports[1]) != 0) {
        throw std::runtime_error(std::string("socketpair: ") + strerror(errno));
    }
    Child children[2];
    for (int side = 0; side < 2; ++side) {
        children[side].pid = fork();
        if (children[side].pid == 0) {
            ::close(pair[1 - side]);
            ::close(reports[0][0]);
            ::close(reports[1][0]);
            ::close(reports[1 - side][1]);
            // exit, not _exit: what watches the plugin (sanitizers, coverage) ends properly.
            std::exit(
                child(options, side, deft::UniqueFd(pair[side]), deft::UniqueFd(reports[side][1])));
        }
    }
    ::close(pair[0]);
    ::close(pair[1]);
    for (int side = 0; side < 2; ++side) {
        ::close(reports[side][1]);
        children[side].control = std::make_unique<Control>(deft::UniqueFd(reports[side][0]));
        children[side].watch.reset(dup(reports[side][0]));
    }
    int status = 0;
    std::string error;
    std::chrono::steady_clock::time_point end{};  // of the grace after the first error
    while (!(children[0].ended && children[1].ended)) {
        pollfd waits[2];
        for (int side = 0; side < 2; ++side) {
            waits[side] = {children[side].ended ? -1 : children[side].watch.get(), POLLIN, 0};
        }
        const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
            end - std::chrono::steady_clock::now());
        if (!error.empty() && rest.count() <= 0) {
            break;
        }
        poll(waits, 2, error.empty() ? -1 : static_cast<int>(rest.count()) + 1);
        for (int side = 0; side < 2; ++side) {
            if (waits[side].revents == 0) {
                continue;
            }
            json message;
            try {
                message = children[side].control->receive();
            } catch (const PeerGone&) {
                children[side].ended = true;  // its exit status tells
                continue;
            }
            if (message["kind"] == "error") {
                if (error.empty()) {
                    error = message["text"];
                    status = message["status"];
                    end = std::chrono::steady_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(options.grace_s * 1e6));
                }
                children[side].ended = true;
                if (options.grace_s > 0) {
                    file.write(message);
                }
            } else if (message["kind"] == "end") {
                children[side].ended = true;
            } else {
                print(message);
                file.write(message);
            }
        }
    }
    for (Child& one : children) {
        if (!error.empty()) {
            kill(one.pid, SIGKILL);
        }
        int how = 0;
        waitpid(one.pid, &how, 0);
        if (error.empty() && !(WIFEXITED(how) && WEXITSTATUS(how) == 0)) {
            status = kFailed;
            if (WIFSIGNALED(how)) {
                fmt::print(stderr, "netperf: a process died of signal {} ({})\n", WTERMSIG(how),
                           strsignal(WTERMSIG(how)));
            }
        }
    }
    if (!error.empty()) {
        fmt::print(stderr, "netperf: {}\n", error);
    }
    return status;
}

}  // namespace
}  // namespace netperf

int main(int argc, char** argv) {
    try {
        netperf::Options options;
        if (!netperf::parse_command_line(argc, argv, &options)) {
            return 0;
        }
        return netperf::parent(options);
    } catch (const netperf::UsageError& error) {
        fmt::print(stderr, "netperf: {}\n", error.what());
        return netperf::kWrongUse;
    } catch (const std::exception& error) {
        fmt::print(stderr, "netperf: {}\n", error.what());
        return netperf::kFailed;
    }
}
