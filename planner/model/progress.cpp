// SPDX-License-Identifier: Apache-2.0
#include "planner/model/progress.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace deft::planner {
namespace {

// Deliveries of the same bytes, in the order of their updates.
auto bytes_first(const Delivery* d) {
    return std::tuple(d->bucket, d->begin, d->end, d->iteration);
}

// Updates in [first, last) of a period that repeats; `at` holds those of one period, ascending.
std::int64_t updates_between(const std::vector<std::uint32_t>& at, std::uint32_t period,
                             std::int64_t first, std::int64_t last) {
    const auto before = [&](std::int64_t iteration) {
        const std::int64_t shifted = iteration + (std::int64_t{1} << 32) * period;
        const auto inside = static_cast<std::uint32_t>(shifted % period);
        return shifted / period * static_cast<std::int64_t>(at.size()) +
               (std::lower_bound(at.begin(), at.end(), inside) - at.begin());
    };
    return before(last) - before(first);
}

// Worth of one update of some bytes: all generations that it gets.
double worth(const Delivery* const* first, const Delivery* const* last,
             const std::vector<std::uint32_t>& at, std::uint32_t period, const Options& options) {
    double merged = 0;
    double missed = 0;
    for (const auto* d = first; d != last; ++d) {
        const Generation& generation = (*d)->generation;
        merged += generation.count;
        for (std::uint32_t g = 0; g < generation.count; ++g) {
            missed += static_cast<double>(
                updates_between(at, period, generation.first + std::int64_t{g}, (*d)->iteration));
        }
    }
    return merged_worth(merged, options.noise_scale) *
           late_worth(missed / merged, options.age_price);
}

}  // namespace

double merged_worth(double merged, double noise_scale) {
    return (1 + noise_scale) / (1 + noise_scale / merged);
}

double late_worth(double missed, double age_price) {
    return 1 / (1 + age_price * missed);
}

double measured_age_price(double rate_curvature, double limit, bool heavy_ball) {
    const double part = limit > 0 ? std::max(rate_curvature, 0.0) / limit : INFINITY;
    const double price = part < 1 ? part / (1 - part) : INFINITY;
    return std::max(price, heavy_ball ? kLeastAgePrice : kAgePrice);
}

double worth_per_iteration(const Plan& plan, const Options& options) {
    switch (options.objective) {
        case Objective::IterationTime:
            return 1;
        case Objective::UpdateTime:
            return plan.predicted.updates > 0 ? plan.predicted.updates : 1;
        case Objective::Progress:
            return progress_per_iteration(plan, options);
    }
    return 1;
}

double seconds_that_count(const Plan& plan, const Options& options) {
    return plan.predicted.iteration / worth_per_iteration(plan, options);
}

double progress_per_iteration(const Plan& plan, const Options& options) {
    if (std::all_of(plan.deliveries.begin(), plan.deliveries.end(),
                    [](const Delivery& d) { return d.delay() == 0 && d.generation.count == 1; })) {
        return 1;
    }
    std::vector<const Delivery*> by_bytes;
    by_bytes.reserve(plan.deliveries.size());
    for (const Delivery& d : plan.deliveries) {
        by_bytes.push_back(&d);
    }
    std::sort(by_bytes.begin(), by_bytes.end(),
              [](const Delivery* a, const Delivery* b) { return bytes_first(a) < bytes_first(b); });
    double total = 0;
    for (const std::uint64_t bytes : plan.bucket_bytes) {
        total += static_cast<double>(bytes);
    }
    double sum = 0;
    std::vector<std::uint32_t> at;  // updates of the bytes at hand
    for (std::size_t i = 0; i < by_bytes.size();) {
        std::size_t end = i;
        at.clear();
        const auto same = [&](const Delivery* d) {
            return std::tuple(d->bucket, d->begin, d->end) ==
                   std::tuple(by_bytes[i]->bucket, by_bytes[i]->begin, by_bytes[i]->end);
        };
        for (; end < by_bytes.size() && same(by_bytes[end]); ++end) {
            if (at.empty() || at.back() != by_bytes[end]->iteration) {
                at.push_back(by_bytes[end]->iteration);
            }
        }
        const double bytes = static_cast<double>(by_bytes[i]->end - by_bytes[i]->begin);
        for (std::size_t k = i; k < end;) {
            std::size_t next = k;
            while (next < end && by_bytes[next]->iteration == by_bytes[k]->iteration) {
                ++next;
            }
            sum += bytes * worth(&by_bytes[k], by_bytes.data() + next, at, plan.period, options);
            k = next;
        }
        i = end;
    }
    return total > 0 ? sum / (total * plan.period) : 0;
}

double late_part(const Plan& plan) {
    double late = 0;
    double all = 0;
    for (const Delivery& d : plan.deliveries) {
        const double bytes = static_cast<double>(d.end - d.begin);
        all += bytes;
        late += d.delay() > 0 ? bytes : 0.0;
    }
    return all > 0 ? late / all : 0;
}

}  // namespace deft::planner
