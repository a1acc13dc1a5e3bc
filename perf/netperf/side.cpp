// SPDX-License-Identifier: Apache-2.0
#include "perf/netperf/side.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "perf/netperf/statistics.h"
#include "softdev/net/call_times.h"
#include "softdev/net/interfaces.h"
#include "softdev/net/logger.h"

namespace netperf {
namespace {

using softdev::net::check;
using softdev::net::DriveError;
using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

std::string last_warning;  // one thread opens the plugin

// While the plugin is opened, what the loader says becomes part of one error line.
void keep_warning(int level, unsigned long, const char*, int, const char* format, ...) {
    if (level != DEFT_NET_LOG_WARN) {
        return;
    }
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    last_warning = line;
}

void enter_namespace(const std::string& name) {
    const std::string path = name.find('/') == std::string::npos ? "/run/netns/" + name : name;
    const deft::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || setns(fd.get(), CLONE_NEWNET) != 0) {
        throw UsageError("--netns " + name + ": " + strerror(errno));
    }
    // /sys shows the interfaces of the namespace it was mounted in; link speeds are read there.
    if (unshare(CLONE_NEWNS) == 0 && mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0) {
        umount2("/sys", MNT_DETACH);
        mount("sysfs", "/sys", "sysfs", MS_RDONLY, nullptr);
    }
}

double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Side::Side(const Options& options, int side, Control* control)
    : options_(options), side_(side), control_(*control) {
    softdev::net::CallTimes::mine().wanted = options.time_calls;
    const std::string& space = options.namespaces[side];
    if (!space.empty()) {
        enter_namespace(space);
    }
    if (!options.interfaces.empty()) {
        setenv("NCCL_SOCKET_IFNAME", options.interfaces.c_str(), 1);
        if (softdev::net::find_interfaces().empty()) {
            throw UsageError("--ifname " + options.interfaces + ": no running interface matches" +
                             (space.empty() ? "" : " in namespace " + space) +
                             "; \"ip link\" lists them");
        }
    }
    if (!options.sysfs[side].empty()) {
        setenv("DEFT_SYSFS", options.sysfs[side].c_str(), 1);
    }
    const bool built_in = options.plugin == "socket";
    setenv("NCCL_NET_PLUGIN", built_in ? "none" : options.plugin.c_str(), 1);
    unsetenv("NCCL_NET");
    if (options.abi != 0) {
        setenv("SOFTDEV_NET_ABI", std::to_string(options.abi).c_str(), 1);
    }
    softdev::net::set_logger(keep_warning);
    softdev::net::CommRequest request;
    request.comm_id = options.seed;
    const int result = softdev::net::NetRegistry::process().open(request, &net_);
    softdev::net::set_logger(nullptr);
    if (result != DEFT_NET_SUCCESS || net_->external() == built_in) {
        // netperf does not fall back to another network as NCCL does.
        throw UsageError("--plugin " + options.plugin + ": " +
                         last_warning.substr(0, last_warning.find(". Falling back")) +
                         (built_in ? ": no usable interface (NCCL_SOCKET_IFNAME, --ifname)" : ""));
    }
    if (options.device >= net_.devices()) {
        throw UsageError("--device " + std::to_string(options.device) + ": " + net_->name() +
                         " has " + std::to_string(net_.devices()) + " device(s), counted from 0");
    }
}

Side::~Side() = default;

json Side::network() const {
    json devices = json::array();
    for (int i = 0; i < net_.devices(); ++i) {
        softdev::net::Properties properties;
        check(net_->get_properties(i, &properties), *net_.net(), "getProperties");
        devices.push_back({{"name", properties.name},
                           {"speed_mbps", properties.speed},
                           {"ptr_support", properties.ptrSupport},
                           {"max_recvs", properties.maxRecvs}});
    }
    return {{"name", net_->name()},
            {"abi", net_->abi()},
            {"file", net_->file()},
            {"namespace", options_.namespaces[side_]},
            {"devices", devices}};
}

json Side::describe() {
    const json theirs = control_.exchange(network());
    connect();
    json all = environment();
    all["networks"] = {network(), theirs};
    all["options"] = {
        {"plugin", options_.plugin},           {"seed", options_.seed},
        {"seconds", options_.seconds},         {"repetitions", options_.repetitions},
        {"connections", options_.connections}, {"bidirectional", options_.bidirectional},
        {"device", options_.device},           {"interfaces", options_.interfaces},
        {"sleep_us", options_.sleep_us},       {"cpus", options_.cpus}};
    return all;
}

void Side::connect() {
    note_resources();
    // Side 0 sends on `connections`, and receives on as many with --bidir; one is needed for the
    // way back of latency.
    const int back = options_.bidirectional ? options_.connections : 1;
    const int out = side_ == 0 ? options_.connections : back;
    const int in = side_ == 0 ? back : options_.connections;
    const auto devices = [&](int count) {
        std::vector<int> list;
        for (int i = 0; i < count; ++i) {
            list.push_back(options_.device >= 0 ? options_.device : i % net_.devices());
        }
        return list;
    };
    const auto exchange = [&](const std::vector<softdev::net::Handle>& ours) {
        json message = json::array();
        for (const softdev::net::Handle& handle : ours) {
            message.push_back(std::vector<int>(handle.begin(), handle.end()));
        }
        std::vector<softdev::net::Handle> theirs;
        for (const json& handle : control_.exchange(message)) {
            theirs.emplace_back();
            const std::vector<int> bytes = handle;
            std::copy(bytes.begin(), bytes.end(), theirs.back().begin());
        }
        return theirs;
    };
    connections_ = softdev::net::establish(net_, devices(out), devices(in), exchange,
                                           softdev::net::after_seconds(options_.patience_s));
}

// `all`: also the way back where only latency needs it.
std::vector<Side::Stream> Side::streams(int depth, size_t slot_bytes, bool all) {
    std::vector<Stream> made;
    const bool both = options_.bidirectional || all;
    if (side_ == 0 || both) {
        for (void* comm : connections_.send) {
            made.emplace_back(*net_.net(), comm, Stream::Kind::Send, depth, slot_bytes);
        }
    }
    if (side_ == 1 || both) {
        for (void* comm : connections_.receive) {
            made.emplace_back(*net_.net(), comm, Stream::Kind::Receive, depth, slot_bytes);
        }
    }
    return made;
}

Side::Run Side::run(std::vector<Stream>& streams, uint64_t messages) {
    std::vector<Stream*> list;
    for (Stream& stream : streams) {
        stream.begin(messages);
        list.push_back(&stream);
    }
    control_.barrier();
    const auto begin = Clock::now();
    const double cpu_before = cpu_seconds();
    softdev::net::run_streams(list, between_passes(), patience());
    Run result{seconds_since(begin), cpu_seconds() - cpu_before, 0, 0};
    for (const Stream& stream : streams) {
        result.bytes += stream.bytes();
        result.null_requests += stream.null_requests();
    }
    return result;
}

json Side::bandwidth(size_t bytes, int depth) {
    std::vector<Stream> mine = streams(depth, bytes, false);
    const double per_sample = options_.seconds / options_.repetitions;
    // Both must know the number of messages beforehand: side 0 finds one that takes about the time.
    uint64_t messages = 2 * depth;
    for (bool decided = false; !decided;) {
        const double took = run(mine, messages).seconds;
        if (side_ == 0) {
            const double enough = std::min(0.05, per_sample);
            decided = took >= enough;
            const double factor = decided ? per_sample / took : std::min(8.0, 1.5 * enough / took);
            messages = std::max<uint64_t>(depth, messages * factor + 1);
            control_.send({messages, decided});
        } else {
            const json told = control_.receive();
            messages = told[0];
            decided = told[1];
        }
    }
    std::vector<double> gbits;
    std::vector<double> cpu_per_gb;
    uint64_t null_requests = 0;
    const size_t directions = options_.bidirectional ? 2 : 1;
    for (int i = 0; i < options_.repetitions; ++i) {
        const Run here = run(mine, messages);
        const json there = control_.exchange({here.seconds, here.cpu_seconds, here.null_requests});
        const double moved = static_cast<double>(messages) * bytes *
                             static_cast<double>(options_.connections * directions);
        gbits.push_back(moved * 8e-9 / std::max<double>(here.seconds, there[0]));
        // JSON has no infinity: empty messages cost nothing per byte.
        cpu_per_gb.push_back(
            moved > 0 ? (here.cpu_seconds + there[1].get<double>()) / (moved * 1e-9) : 0);
        null_requests += here.null_requests + there[2].get<uint64_t>();
    }
    return {{"kind", "bandwidth"},
            {"bytes", bytes},
            {"depth", depth},
            {"connections", options_.connections},
            {"bidirectional", options_.bidirectional},
            {"messages_per_sample", messages},
            {"gbit_per_s", summary(gbits)},
            {"cpu_s_per_gb", bytes == 0 ? json() : summary(cpu_per_gb)},
            {"null_requests", null_requests}};
}

json Side::latency(size_t bytes) {
    void* out = connections_.send.front();
    void* in = connections_.receive.front();
    Stream send(*net_.net(), out, Stream::Kind::Send, 1, bytes);
    Stream receive(*net_.net(), in, Stream::Kind::Receive, 1, bytes);
    std::vector<double> half_us;
    const std::array both = {&send, &receive};
    // With a CPU each they spin, as plain TCP's ping-pong beside them does: a yield takes as long
    // as looking at a socket, and would be measured as the plugin's.
    softdev::net::Idle between = between_passes();
    between.spin = options_.spin || (options_.cpus[0] >= 0 && options_.cpus[0] != options_.cpus[1]);
    const auto ping = [&] {
        receive.begin(1);
        receive.step();  // posted before the ping goes out
        send.begin(1);
        softdev::net::run_streams(both, between, patience());
    };
    const auto pong = [&] {
        receive.begin(1);
        softdev::net::run_streams(std::array{&receive}, between, patience());
        send.begin(1);
        softdev::net::run_streams(std::array{&send}, between, patience());
    };
    uint64_t rounds = 200;  // first to warm up and to see how long one takes
    for (int pass = 0; pass < 2; ++pass) {
        control_.barrier();
        const auto begin = Clock::now();
        for (uint64_t i = 0; i < rounds; ++i) {
            if (side_ == 1) {
                pong();
                continue;
            }
            const auto sent = Clock::now();
            ping();
            if (pass == 1) {
                half_us.push_back(seconds_since(sent) * 0.5e6);
            }
        }
        if (pass == 0) {
            rounds =
                std::clamp<uint64_t>(rounds * options_.seconds / seconds_since(begin), 200, 200000);
            rounds =
                side_ == 0 ? (control_.send(rounds), rounds) : control_.receive().get<uint64_t>();
        }
    }
    if (side_ == 1) {
        return nullptr;
    }
    return {{"kind", "latency"},
            {"bytes", bytes},
            {"rounds", rounds},
            {"half_round_trip_us", percentiles(half_us)}};
}

json Side::verify() {
    const size_t largest = *std::max_element(options_.sizes.begin(), options_.sizes.end());
    const int depth = *std::max_element(options_.depths.begin(), options_.depths.end());
    std::vector<Stream> mine = streams(depth, largest, true);
    // Enough messages that every slot is used several times, bounded by the bytes they hold.
    const uint64_t messages =
        std::clamp<uint64_t>((uint64_t{256} << 20) / std::max<size_t>(largest, 1), 64, 2000);
    std::vector<Stream*> list;
    uint64_t checked = 0;
    int out = 0;
    int in = 0;
    for (Stream& stream : mine) {
        const bool sends = stream.kind() == Stream::Kind::Send;
        // Both ends must agree: direction and position on the connection.
        const uint64_t seed =
            options_.seed * 1000003 + (sends == (side_ == 0) ? 0 : 500000) + (sends ? out++ : in++);
        const auto size_of = [=](uint64_t index) { return random_size(seed, index, largest); };
        const auto touch = [=, &checked](uint64_t index, char* slot, size_t bytes) {
            if (sends) {
                softdev::net::fill_pattern(seed, index, slot, bytes);
                return;
            }
            const size_t expected = size_of(index);
            if (bytes != expected) {
                throw DriveError("message " + std::to_string(index) + ": test reported " +
                                 std::to_string(bytes) + " bytes, sent were " +
                                 std::to_string(expected));
            }
            const size_t wrong = softdev::net::check_pattern(seed, index, slot, bytes);
            if (wrong != bytes) {
                throw DriveError("message " + std::to_string(index) + " of " +
                                 std::to_string(bytes) + " bytes is wrong at byte " +
                                 std::to_string(wrong));
            }
            checked += bytes;
        };
        stream.begin(messages, size_of, touch);
        list.push_back(&stream);
    }
    control_.barrier();
    softdev::net::run_streams(list, between_passes(), patience());
    const uint64_t total = checked + control_.exchange(checked).get<uint64_t>();
    return {{"kind", "verify"},
            {"messages", messages},
            {"largest", largest},
            {"bytes_checked", total},
            {"ok", true}};
}

void Side::close() {
    control_.barrier();
    softdev::net::close_all(net_, &connections_);
    check(net_.release(), *net_.net(), "finalize");
}

}  // namespace netperf
