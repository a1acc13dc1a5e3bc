// SPDX-License-Identifier: Apache-2.0
// Figures of samples, the machine they were taken on, and the sizes of --verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace netperf {

// {"median", "min", "max", "samples"}
nlohmann::json summary(const std::vector<double>& samples);
// {"n", "min", "p50", "p90", "p99", "p999", "max", "mean"}; raw samples thinned to 1000.
nlohmann::json percentiles(std::vector<double> samples);

// {"kind":"environment", machine, kernel, cores, memory, load, versions}
nlohmann::json environment();

// 0, 1, the largest, and anything between, small ones being as likely as large ones.
size_t random_size(uint64_t seed, uint64_t index, size_t largest);

}  // namespace netperf
