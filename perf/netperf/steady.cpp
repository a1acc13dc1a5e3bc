// SPDX-License-Identifier: Apache-2.0
// What is seen over time: one long run with its gaps, and connections at rest.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "perf/netperf/side.h"
#include "perf/netperf/statistics.h"
#include "softdev/net/call_times.h"

namespace netperf {
namespace {

using softdev::net::DriveError;
using json = nlohmann::json;

constexpr double kBin = 0.01;   // seconds
constexpr double kGap = 0.002;  // shorter ones are not listed
constexpr std::size_t kMaxGaps = 20000;

double monotonic() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

long resident_kib() {
    std::ifstream file("/proc/self/statm");
    long total = 0;
    long resident = 0;
    file >> total >> resident;
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

long descriptors() {
    long count = 0;
    if (DIR* folder = opendir("/proc/self/fd")) {
        while (readdir(folder) != nullptr) {
            ++count;
        }
        closedir(folder);
    }
    return count - 3;  // ".", ".." and the folder itself
}

}  // namespace

// Of this side, since the plugin was opened.
json Side::calls() {
    const softdev::net::CallTimes& times = softdev::net::CallTimes::mine();
    const auto told = [](const softdev::net::CallTimes::Longest& longest) {
        return json{{"calls", longest.calls},
                    {"longest_ms", longest.seconds * 1e3},
                    {"of_these_queued_ms", longest.queued * 1e3},
                    {"longest_call", longest.call}};
    };
    return {
        {"interrupted", times.interrupted},
        {"making", {{"worked", told(times.making.worked)}, {"waited", told(times.making.waited)}}},
        {"moving", {{"worked", told(times.moving.worked)}, {"waited", told(times.moving.waited)}}}};
}

json Side::progress() const {
    return {{"messages", progress_.messages},
            {"wrong_messages", progress_.wrong_messages},
            {"wrong_bytes", progress_.wrong_bytes},
            {"last_s", progress_.last_s}};
}

json Side::steady(size_t bytes, int depth) {
    std::vector<Stream> mine = streams(depth, bytes, false);
    std::vector<double> bins;
    json gaps = json::array();
    double begin = 0;
    double last = 0;
    double longest = 0;
    const bool verify = options_.verify;
    // Of each connection and message: when it was handed over (side 0), when it was there (side 1).
    std::vector<std::vector<double>> times(mine.size());
    const auto note_arrival = [&](size_t size) {
        const double now = monotonic();
        const auto bin = static_cast<size_t>((now - begin) / kBin);
        bins.resize(std::max(bins.size(), bin + 1));
        bins[bin] += static_cast<double>(size);
        const double gap = now - last;
        longest = std::max(longest, gap);
        if (gap >= kGap && gaps.size() < kMaxGaps) {
            gaps.push_back({last, gap});
        }
        last = now;
    };
    const auto touch = [&](size_t connection, uint64_t index, char* slot, size_t size) {
        // The first connection's bytes are those of a single one.
        const uint64_t seed = options_.seed * 1000003 + connection * 7919;
        if (side_ == 0) {
            if (verify) {
                softdev::net::fill_pattern(seed, index, slot, size);
            }
        } else {
            if (size != bytes) {
                throw DriveError("message " + std::to_string(index) + ": test reported " +
                                 std::to_string(size) + " bytes");
            }
            if (verify && softdev::net::check_pattern(seed, index, slot, size) != size) {
                if (!options_.count_wrong) {
                    throw DriveError("message " + std::to_string(index) + " is wrong");
                }
                ++progress_.wrong_messages;
                progress_.wrong_bytes += softdev::net::wrong_bytes(seed, index, slot, size);
            }
            note_arrival(size);
        }
        ++progress_.messages;
        progress_.last_s = monotonic();
        times[connection].push_back(progress_.last_s);
    };
    std::vector<Stream*> list;
    for (size_t i = 0; i < mine.size(); ++i) {
        mine[i].begin(options_.messages, {}, [&touch, i](uint64_t index, char* slot, size_t size) {
            touch(i, index, slot, size);
        });
        if (side_ == 0 && options_.pace > 0) {
            mine[i].wait_until([&begin, this](uint64_t index) {
                return monotonic() >= begin + static_cast<double>(index) / options_.pace;
            });
        }
        list.push_back(&mine[i]);
    }
    control_.barrier();
    begin = last = monotonic();
    softdev::net::run_streams(list, between_passes(), patience());
    const json theirs = control_.exchange({{"begin", begin},
                                           {"seconds", monotonic() - begin},
                                           {"bin_s", kBin},
                                           {"bytes_per_bin", bins},
                                           {"longest_gap_ms", longest * 1e3},
                                           {"gaps_s", gaps},
                                           {"wrong_messages", progress_.wrong_messages},
                                           {"wrong_bytes", progress_.wrong_bytes},
                                           {"calls", calls()},
                                           {"times", times}});
    if (side_ == 1) {
        return nullptr;
    }
    json result = theirs;
    result.erase("times");
    result["calls"] = {calls(), theirs["calls"]};
    // One process may have begun later than the other; both are on one host, with one clock.
    const double end = theirs["begin"].get<double>() + theirs["seconds"].get<double>();
    result["seconds"] = end - std::min(begin, theirs["begin"].get<double>());
    std::vector<double> took;
    for (size_t i = 0; i < times.size(); ++i) {
        const std::vector<double> arrivals = theirs["times"][i];
        for (size_t k = 0; k < arrivals.size(); ++k) {
            took.push_back((arrivals[k] - times[i][k]) * 1e3);
        }
    }
    result["message_ms"] = percentiles(took);
    result["kind"] = "steady";
    result["bytes"] = bytes;
    result["depth"] = depth;
    result["connections"] = mine.size();
    result["messages"] = options_.messages;
    result["verified"] = verify && progress_.wrong_messages == 0 && theirs["wrong_messages"] == 0;
    return result;
}

// NCCL calls a plugin only while it has requests: what is left then is what this measures.
json Side::idle() {
    std::vector<Stream> mine = streams(4, 1 << 20, true);
    std::vector<Stream*> list;
    for (Stream& stream : mine) {
        stream.begin(8);
        list.push_back(&stream);
    }
    softdev::net::run_streams(list, between_passes(), patience());
    list.clear();
    mine.clear();  // their buffers are the caller's, not the plugin's
    control_.barrier();
    const double before = cpu_seconds();
    const double start = monotonic();
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds));
    const double used = (cpu_seconds() - before) / (monotonic() - start);
    const json ours = {{"memory_kib", resident_kib() - memory_before_},
                       {"descriptors", descriptors() - descriptors_before_},
                       {"cpu_percent", 100 * used}};
    const json theirs = control_.exchange(ours);
    if (side_ == 1) {
        return nullptr;
    }
    return {{"kind", "idle"},
            {"connections", options_.connections},
            {"seconds", options_.seconds},
            {"sides", {ours, theirs}}};
}

void Side::note_resources() {
    memory_before_ = resident_kib();
    descriptors_before_ = descriptors();
}

}  // namespace netperf
