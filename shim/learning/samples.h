// SPDX-License-Identifier: Apache-2.0
// Measurements of one quantity: how many there were, and the distribution of the latest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace deft {

struct Summary {
    double median = 0;
    double p10 = 0;
    double p90 = 0;
    std::uint64_t n = 0;  // measurements in all; 0: the others mean nothing
    double mean = 0;      // of those from p10 to p90
};

// Keeps the latest kKept measurements.
class Samples {
public:
    static constexpr std::size_t kKept = 512;

    void add(double value) {
        if (kept_.size() < kKept) {
            kept_.push_back(value);
        } else {
            kept_[count_ % kKept] = value;
        }
        ++count_;
    }

    std::uint64_t count() const { return count_; }

    // Percentiles by linear interpolation between the two nearest ranks.
    Summary summary() const {
        if (kept_.empty()) {
            return {};
        }
        std::vector<double> sorted = kept_;
        std::sort(sorted.begin(), sorted.end());
        const auto at = [&sorted](double fraction) {
            const double place = fraction * static_cast<double>(sorted.size() - 1);
            const auto low = static_cast<std::size_t>(place);
            const std::size_t high = std::min(low + 1, sorted.size() - 1);
            return sorted[low] + (sorted[high] - sorted[low]) * (place - static_cast<double>(low));
        };
        Summary summary{at(0.5), at(0.1), at(0.9), count_};
        double sum = 0;
        std::size_t kept = 0;
        for (const double value : sorted) {
            const bool middle = value >= summary.p10 && value <= summary.p90;
            sum += middle ? value : 0;
            kept += middle ? 1 : 0;
        }
        summary.mean = kept > 0 ? sum / static_cast<double>(kept) : summary.median;
        return summary;
    }

private:
    std::vector<double> kept_;
    std::uint64_t count_ = 0;
};

}  // namespace deft
