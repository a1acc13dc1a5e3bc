// SPDX-License-Identifier: Apache-2.0
// What is seen over time: one long run with its gaps, and connections at rest.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "perf/netperf/endpoint.h"
#include "perf/netperf/statistics.h"

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

json Endpoint::steady(size_t bytes, int depth) {
    std::vector<Stream> mine = streams(depth, bytes, false);
    std::vector<double> bins;
    json gaps = json::array();
    double begin = 0;
    double last = 0;
    double longest = 0;
    const uint64_t seed = options_.seed * 1000003;
    const bool verify = options_.verify;
    const auto touch = [&](uint64_t index, char* slot, size_t size) {
        if (side_ == 0) {
            if (verify) {
                softdev::net::fill_pattern(seed, index, slot, size);
            }
            return;
        }
        if (size != bytes) {
            throw DriveError("message " + std::to_string(index) + ": test reported " +
                             std::to_string(size) + " bytes");
        }
        if (verify && softdev::net::check_pattern(seed, index, slot, size) != size) {
            throw DriveError("message " + std::to_string(index) + " is wrong");
        }
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
    std::vector<Stream*> list;
    for (Stream& stream : mine) {
        stream.begin(options_.messages, {}, touch);
        list.push_back(&stream);
    }
    control_.barrier();
    begin = last = monotonic();
    softdev::net::run_streams(list, between_passes(), patience());
    const json theirs = control_.exchange({{"begin", begin},
                                           {"seconds", monotonic() - begin},
                                           {"bin_s", kBin},
                                           {"bytes_per_bin", bins},
                                           {"longest_gap_ms", longest * 1e3},
                                           {"gaps_s", gaps}});
    if (side_ == 1) {
        return nullptr;
    }
    json result = theirs;
    result["kind"] = "steady";
    result["bytes"] = bytes;
    result["depth"] = depth;
    result["messages"] = options_.messages;
    result["verified"] = verify;
    return result;
}

// NCCL calls a plugin only while it has requests: what is left then is what this measures.
json Endpoint::idle() {
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

void Endpoint::note_resources() {
    memory_before_ = resident_kib();
    descriptors_before_ = descriptors();
}

}  // namespace netperf
