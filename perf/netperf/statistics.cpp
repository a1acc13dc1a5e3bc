// SPDX-License-Identifier: Apache-2.0
#include "perf/netperf/statistics.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "softdev/net/plugin_names.h"

namespace netperf {
namespace {

using json = nlohmann::json;

double at(const std::vector<double>& sorted, double fraction) {
    return sorted[std::min(sorted.size() - 1, static_cast<size_t>(fraction * sorted.size()))];
}

std::string cpu_model() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("model name")) {
            return line.substr(line.find(':') + 2);
        }
    }
    return "unknown";
}

}  // namespace

json summary(const std::vector<double>& samples) {
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    const size_t half = sorted.size() / 2;
    const double median =
        sorted.size() % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    return {
        {"median", median}, {"min", sorted.front()}, {"max", sorted.back()}, {"samples", samples}};
}

json percentiles(std::vector<double> samples) {
    json raw = json::array();
    const size_t step = std::max<size_t>(1, samples.size() / 1000);
    for (size_t i = 0; i < samples.size(); i += step) {
        raw.push_back(static_cast<int64_t>(samples[i] * 1000) / 1000.0);
    }
    std::sort(samples.begin(), samples.end());
    return {{"n", samples.size()},
            {"min", samples.front()},
            {"p50", at(samples, 0.5)},
            {"p90", at(samples, 0.9)},
            {"p99", at(samples, 0.99)},
            {"p999", at(samples, 0.999)},
            {"max", samples.back()},
            {"mean", std::accumulate(samples.begin(), samples.end(), 0.0) / samples.size()},
            {"every", step},
            {"samples", raw}};
}

json environment() {
    utsname name{};
    uname(&name);
    double load[3] = {0, 0, 0};
    [[maybe_unused]] const int loads = getloadavg(load, 3);
    const char* version = std::getenv("SOFTDEV_NCCL_VERSION");
    return {
        {"kind", "environment"},
        {"program", "netperf"},
        {"deft", DEFT_VERSION},
        {"nccl_rules", version != nullptr ? std::atoi(version) : softdev::net::kDefaultNcclVersion},
        {"time", std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count()},
        {"host", name.nodename},
        {"machine", name.machine},
        {"kernel", name.release},
        {"cpu", cpu_model()},
        {"cores", std::thread::hardware_concurrency()},
        {"memory_gb", sysconf(_SC_PHYS_PAGES) * 1e-9 * sysconf(_SC_PAGESIZE)},
        {"load_before", load[0]},
        {"compiler", __VERSION__}};
}

size_t random_size(uint64_t seed, uint64_t index, size_t largest) {
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15 + index);
    switch (random() % 8) {
        case 0:
            return 0;
        case 1:
            return std::min<size_t>(1, largest);
        case 2:
            return largest;
        default: {
            size_t bound = largest;
            bound >>= random() % 20;
            return bound == 0 ? 0 : random() % (bound + 1);
        }
    }
}

}  // namespace netperf
