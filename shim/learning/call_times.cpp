// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/call_times.h"

#include <algorithm>
#include <utility>

namespace deft {
namespace {

// A call that starts this soon after the stream's previous one ended was waiting for it. A busy
// host or a loaded device takes longer to go on; beside a long wait, a short gap is just that.
constexpr std::int64_t kBackToBack = 20'000;
constexpr std::int64_t kGapOfWait = 20;  // parts of the wait that a gap may last

double milliseconds(std::int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-6;
}

std::int64_t last_end(const std::vector<TimedCall>& calls) {
    std::int64_t end = calls.front().end;
    for (const TimedCall& call : calls) {
        end = std::max(end, call.end);
    }
    return end;
}

bool all_timed(const std::vector<TimedCall>& calls) {
    return !calls.empty() &&
           std::all_of(calls.begin(), calls.end(), [](const TimedCall& c) { return c.timed; });
}

}  // namespace

CallTimes::CallTimes(std::size_t length) : places_(length) {
    current_.reserve(length);
    previous_.reserve(length);
}

void CallTimes::interrupted() {
    current_.clear();
    previous_.clear();
}

void CallTimes::add(const TimedCall& call) {
    if (call.position != current_.size()) {
        interrupted();
        if (call.position != 0) {
            return;  // wait for the beginning of an iteration
        }
    }
    if (call.position == 0 && !previous_.empty()) {
        iteration_ms_.add(milliseconds(call.issued - previous_.front().issued));
    }
    current_.push_back(call);
    if (current_.size() == places_.size()) {
        finish_iteration();
    }
}

void CallTimes::finish_iteration() {
    if (all_timed(current_) && all_timed(previous_)) {
        measure(last_end(previous_));
    }
    previous_.swap(current_);
    current_.clear();
}

// When each call's data were there. A call that found its stream idle started at once. One that had
// to wait for the transfer before it started late; it was ready at the host's call at the earliest,
// and the stream lags the host by as much as it did for the calls that found it idle.
std::vector<std::int64_t> CallTimes::ready_times() const {
    std::vector<bool> waited(current_.size());
    std::vector<std::int64_t> lags;
    const auto& before = previous_;
    for (std::size_t i = 0; i < current_.size(); ++i) {
        const TimedCall& call = current_[i];
        const auto delays = [&call](const TimedCall& earlier) {
            const std::int64_t gap =
                std::max(kBackToBack, (earlier.end - call.issued) / kGapOfWait);
            return earlier.stream == call.stream &&
                   (earlier.group == 0 || earlier.group != call.group) &&
                   earlier.end <= call.start + kBackToBack && call.start - earlier.end < gap;
        };
        waited[i] = std::any_of(current_.begin(), current_.begin() + static_cast<std::ptrdiff_t>(i),
                                delays) ||
                    std::any_of(before.begin(), before.end(), delays);
        if (!waited[i]) {
            lags.push_back(std::max<std::int64_t>(call.start - call.issued, 0));
        }
    }
    std::int64_t lag = 0;
    if (!lags.empty()) {
        std::nth_element(lags.begin(), lags.begin() + static_cast<std::ptrdiff_t>(lags.size() / 2),
                         lags.end());
        lag = lags[lags.size() / 2];
    }
    std::vector<std::int64_t> ready(current_.size());
    for (std::size_t i = 0; i < current_.size(); ++i) {
        const TimedCall& call = current_[i];
        ready[i] = waited[i] ? std::min(call.issued + lag, call.start) : call.start;
    }
    return ready;
}

// When NCCL came to each call.
std::vector<std::int64_t> CallTimes::began_times() const {
    struct Line {
        std::uint32_t comm;
        std::uint64_t group = 0;  // of its latest call
        std::int64_t end = 0;     // of that group, or call
        std::int64_t before = 0;  // of all before it
    };
    std::vector<Line> lines;
    std::vector<std::int64_t> began;
    const auto come_to = [&lines](const TimedCall& call) {
        auto line = std::find_if(lines.begin(), lines.end(),
                                 [&call](const Line& l) { return l.comm == call.comm; });
        if (line == lines.end()) {
            line = lines.insert(lines.end(), Line{call.comm});
        }
        if (call.group == 0 || call.group != line->group) {
            line->before = std::max(line->before, line->end);
        }
        line->group = call.group;
        line->end = std::max(line->end, call.end);
        return line->before < call.end ? std::max(call.start, line->before) : call.start;
    };
    std::for_each(previous_.begin(), previous_.end(), come_to);
    for (const TimedCall& call : current_) {
        began.push_back(come_to(call));
    }
    return began;
}

void CallTimes::trace(std::int64_t origin, const std::vector<std::int64_t>& ready) {
    const std::size_t kept =
        std::clamp<std::size_t>(kTracedCalls / current_.size(), 1, kTracedIterations);
    TracedIteration iteration;
    if (traced_.size() >= kept) {
        iteration.calls = std::move(traced_.front().calls);  // its memory
        iteration.calls.clear();
        traced_.pop_front();
    }
    iteration.origin = origin;
    for (std::size_t i = 0; i < current_.size(); ++i) {
        const TimedCall& call = current_[i];
        iteration.calls.push_back({call.position, call.issued, ready[i], call.start, call.end});
    }
    traced_.push_back(std::move(iteration));
}

void CallTimes::measure(std::int64_t origin) {
    const std::vector<std::int64_t> ready = ready_times();
    trace(origin, ready);
    const std::vector<std::int64_t> began = began_times();
    const std::int64_t end = last_end(current_);
    double total_ms = 0;
    std::int64_t latest = origin;
    std::int64_t busy_until = origin;
    for (std::size_t i = 0; i < current_.size(); ++i) {
        const TimedCall& call = current_[i];
        latest = std::max(latest, call.start);
        places_[i].idle_ms.add(milliseconds(std::max<std::int64_t>(call.start - busy_until, 0)));
        busy_until = std::max(busy_until, call.end);
        double transfer_ms = milliseconds(call.end - began[i]);
        if (call.group != 0) {
            // Calls of one group run together: each takes its share of the group by size.
            double bytes = 0;
            std::int64_t first = began[i];
            std::int64_t last = call.end;
            double members = 0;
            for (std::size_t o = 0; o < current_.size(); ++o) {
                const TimedCall& other = current_[o];
                if (other.group == call.group) {
                    bytes += static_cast<double>(other.bytes);
                    members += 1;
                    first = std::min(first, began[o]);
                    last = std::max(last, other.end);
                }
            }
            const double share = bytes > 0 ? static_cast<double>(call.bytes) / bytes : 1 / members;
            transfer_ms = milliseconds(last - first) * share;
        }
        places_[i].ready_ms.add(milliseconds(ready[i] - origin));
        places_[i].start_ms.add(milliseconds(call.start - origin));
        places_[i].issued_ms.add(milliseconds(call.issued - origin));
        places_[i].transfer_ms.add(transfer_ms);
        total_ms += transfer_ms;
    }
    const std::int64_t last_ready = *std::max_element(ready.begin(), ready.end());
    const std::int64_t exposed =
        std::clamp<std::int64_t>(end - last_ready, 0, std::max<std::int64_t>(end - origin, 0));
    const std::int64_t compute = end - origin - exposed;
    exposed_ms_.add(milliseconds(exposed));
    latest_start_ms_.add(milliseconds(latest - origin));
    if (compute > 0) {
        compute_ms_.add(milliseconds(compute));
        coverage_rate_.add(total_ms / milliseconds(compute));
    }
}

}  // namespace deft
