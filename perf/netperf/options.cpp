// SPDX-License-Identifier: Apache-2.0
#include "perf/netperf/options.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "deft/abi/net.h"

namespace netperf {
namespace {

std::vector<std::string> split(const std::string& list, const std::string& option) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (;;) {
        const size_t comma = list.find(',', begin);
        parts.push_back(list.substr(begin, comma - begin));
        if (parts.back().empty()) {
            throw UsageError(option + " " + list + ": an element of the list is empty");
        }
        if (comma == std::string::npos) {
            return parts;
        }
        begin = comma + 1;
    }
}

constexpr size_t kLargestMessage = size_t{1} << 30;  // as much as any table version takes

std::vector<size_t> parse_sizes(const std::string& list, const std::string& option) {
    std::vector<size_t> sizes;
    for (const std::string& text : split(list, option)) {
        sizes.push_back(parse_size(text, option));
    }
    return sizes;
}

void check_namespaces(const std::string& list, Options* options) {
    const std::vector<std::string> names = split(list, "--netns");
    if (names.size() != 2) {
        throw UsageError("--netns " + list + ": two names are needed, A,B");
    }
    for (int i = 0; i < 2; ++i) {
        const bool is_path = names[i].find('/') != std::string::npos;
        struct stat status;
        if (stat((is_path ? names[i] : "/run/netns/" + names[i]).c_str(), &status) != 0) {
            throw UsageError("--netns " + names[i] + ": there is no such network namespace; " +
                             "\"ip netns add " + names[i] + "\" makes one");
        }
        options->namespaces[i] = names[i];
    }
}

void check_sysfs(const std::string& list, Options* options) {
    const std::vector<std::string> folders = split(list, "--sysfs");
    if (folders.size() != 2) {
        throw UsageError("--sysfs " + list + ": two folders are needed, A,B");
    }
    for (int i = 0; i < 2; ++i) {
        if (access(folders[i].c_str(), R_OK | X_OK) != 0) {
            throw UsageError("--sysfs " + folders[i] + ": no such folder can be read");
        }
        options->sysfs[i] = folders[i];
    }
}

void check_cpus(const std::string& list, Options* options) {
    const std::vector<std::string> numbers = split(list, "--cpus");
    if (numbers.size() != 2) {
        throw UsageError("--cpus " + list + ": two numbers are needed, A,B");
    }
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int i = 0; i < 2; ++i) {
        const std::string& number = numbers[i];
        const bool digits =
            number.size() <= 4 && number.find_first_not_of("0123456789") == std::string::npos;
        const int cpu = digits ? std::atoi(number.c_str()) : -1;
        if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
            throw UsageError("--cpus " + list + ": \"" + number +
                             "\" is no CPU this process may use; see nproc(1) and taskset(1)");
        }
        options->cpus[i] = cpu;
    }
}

// CLI::Range lets it through: it is neither below nor above.
std::string no_nan(const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : std::string();
}

}  // namespace

size_t parse_size(const std::string& text, const std::string& option) {
    size_t value = 0;
    size_t digits = 0;
    while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) {
        value = std::min<size_t>(value * 10 + (text[digits] - '0'), size_t{1} << 40);
        ++digits;
    }
    const std::string unit = text.substr(digits);
    const size_t factor = unit.empty()                 ? 1
                          : unit == "K" || unit == "k" ? size_t{1} << 10
                          : unit == "M" || unit == "m" ? size_t{1} << 20
                          : unit == "G" || unit == "g" ? size_t{1} << 30
                                                       : 0;
    if (digits == 0 || factor == 0) {
        throw UsageError(option + " \"" + text + "\" is no size; write bytes, or 64K, 1M, 1G");
    }
    if (value * factor > kLargestMessage) {
        throw UsageError(option + " \"" + text +
                         "\" is too large; 1G is the most NCCL sends at once");
    }
    return value * factor;
}

std::string size_text(size_t bytes) {
    for (const auto& [factor, unit] :
         {std::pair<size_t, const char*>{1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}}) {
        if (bytes >= factor && bytes % factor == 0) {
            return std::to_string(bytes / factor) + unit;
        }
    }
    return std::to_string(bytes);
}

namespace {

// Options that are read once all are there.
struct Texts {
    std::string sizes;
    std::string latency_sizes;
    std::string depths;
    std::string namespaces;
    std::string cpus;
    std::string sysfs;
    std::string mode = "all";
};

void add_what(CLI::App& app, Options* options, Texts& texts) {
    app.add_option("--plugin", options->plugin,
                   "File or name of the plugin as in NCCL_NET_PLUGIN, or \"socket\" for the "
                   "built-in TCP transport")
        ->required();
    app.add_option("--abi", options->abi, "Plugin table version to use (default: the newest)")
        ->check(CLI::Range(6, 12));
    app.add_option("--sizes", texts.sizes, "Message sizes for bandwidth (8,4K,64K,512K,1M,4M)");
    app.add_option("--latency-sizes", texts.latency_sizes, "Sizes for latency (8,1K,8K,64K)");
    app.add_option("--depth", texts.depths, "Requests in flight per connection, a list (8)");
    app.add_option("--time", options->seconds, "Seconds per size and depth (2)")
        ->check(CLI::Range(0.01, 3600.0))
        ->check(no_nan);
    app.add_option("--reps", options->repetitions, "Samples the time is cut into (5)")
        ->check(CLI::Range(1, 1000));
    app.add_option("--connections", options->connections, "Connections in each direction used (1)")
        ->check(CLI::Range(1, 256));
    app.add_option("--netns", texts.namespaces,
                   "A,B: network namespaces of the two processes, names or paths");
    app.add_option("--cpus", texts.cpus, "A,B: CPUs that the two processes are bound to");
    app.add_option("--sysfs", texts.sysfs,
                   "A,B: folders in sysfs's form that show each process its RDMA ports");
    app.add_option("--ifname", options->interfaces, "Sets NCCL_SOCKET_IFNAME");
    app.add_option("--device", options->device,
                   "Device of every connection (default: they take turns)")
        ->check(CLI::Range(0, 255));
}

void add_how(CLI::App& app, Options* options, Texts& texts) {
    app.add_flag("--bidir", options->bidirectional, "Both directions at once");
    app.add_flag("--verify", options->verify, "First check every byte of messages of random sizes");
    app.add_option("--seed", options->seed, "Of --verify's sizes and bytes (1)");
    app.add_option("--sleep", options->sleep_us,
                   "Microseconds to sleep after a pass in which nothing moved (0: spin)")
        ->check(CLI::Range(0, 1000000));
    app.add_option("--patience", options->patience_s,
                   "Seconds without progress that count as a failure (30)")
        ->check(CLI::Range(1, 3600));
    app.add_option("--json", options->json, "Also write JSON lines to this file");
    app.add_option("--messages", options->messages,
                   "Messages of --mode steady on each connection (10000)")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
    app.add_option("--pace", options->pace,
                   "Messages a second of --mode steady on each connection (0: as fast as they go)")
        ->check(CLI::Range(0.0, 1e6))
        ->check(no_nan);
    app.add_flag(
        "--spin", options->spin,
        "no yield after a pass in which nothing moved, as programs spin that are compared");
    app.add_flag("--time-calls", options->time_calls,
                 "with --mode steady: the longest of the plugin's calls, set-up included");
    app.add_flag("--count-wrong", options->count_wrong,
                 "With --mode steady --verify: count wrong bytes and go on");
    app.add_option("--grace", options->grace_s,
                   "Seconds the other process has for its own error after the first one (0)")
        ->check(CLI::Range(0.0, 3600.0))
        ->check(no_nan);
    app.add_option("--mode", texts.mode,
                   "bw, lat, all (both); steady: one run of --messages with a time line; idle: "
                   "memory, descriptors and the CPU of connections at rest for --time")
        ->check(CLI::IsMember({"bw", "lat", "all", "steady", "idle"}));
}

void parse_depths(const std::string& depths, Options* options) {
    options->depths.clear();
    for (const std::string& text : split(depths, "--depth")) {
        const bool digits =
            text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos;
        const int depth = digits ? std::atoi(text.c_str()) : 0;
        if (depth < 1 || depth > DEFT_NET_MAX_REQUESTS) {
            throw UsageError("--depth " + text + ": 1 to 32 requests may be in flight");
        }
        options->depths.push_back(depth);
    }
}

void check_plugin(const Options* options) {
    if (options->plugin.empty() || options->plugin == "none") {
        throw UsageError("--plugin '" + options->plugin +
                         "': names no plugin; give a file, a name, or socket for the built-in "
                         "transport");
    }
    if (options->plugin.find('/') != std::string::npos &&
        access(options->plugin.c_str(), R_OK) != 0) {
        throw UsageError("--plugin " + options->plugin + ": no such file can be read");
    }
}

}  // namespace

bool parse_command_line(int argc, char** argv, Options* options) {
    CLI::App app("Drives an NCCL network plugin as NCCL's proxy does, between two processes");
    Texts texts;
    add_what(app, options, texts);
    add_how(app, options, texts);
    app.set_version_flag("--version", "netperf of deft " DEFT_VERSION);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& asked) {
        app.exit(asked);
        return false;
    } catch (const CLI::ParseError& error) {
        throw UsageError(error.what());
    }
    if (!texts.sizes.empty()) {
        options->sizes = parse_sizes(texts.sizes, "--sizes");
    }
    if (!texts.latency_sizes.empty()) {
        options->latency_sizes = parse_sizes(texts.latency_sizes, "--latency-sizes");
    }
    if (!texts.depths.empty()) {
        parse_depths(texts.depths, options);
    }
    if (!texts.namespaces.empty()) {
        check_namespaces(texts.namespaces, options);
    }
    if (!texts.cpus.empty()) {
        check_cpus(texts.cpus, options);
    }
    if (!texts.sysfs.empty()) {
        check_sysfs(texts.sysfs, options);
    }
    check_plugin(options);
    options->bandwidth = texts.mode == "bw" || texts.mode == "all";
    options->latency = texts.mode == "lat" || texts.mode == "all";
    options->steady = texts.mode == "steady";
    options->idle = texts.mode == "idle";
    return true;
}

}  // namespace netperf
