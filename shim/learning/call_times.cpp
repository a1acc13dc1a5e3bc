// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/call_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace deft {
namespace {

// A call that starts this soon after the stream's previous one ended was waiting for it. A busy
// host or a loaded device takes longer to go on; beside a long wait, a short gap is just that.
constexpr std::int64_t kBackToBack = 20'000;
constexpr std::int64_t kGapOfWait = 20;  // parts of the wait that a gap may last
// A communicator this many times as fast as another one goes over other links.
constexpr double kFaster = 4;

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

// A communicator, and how fast its calls were.
struct Carrier {
    std::uint32_t comm = 0;
    double bytes = 0;
    double nanoseconds = 0;
};

bool may_meet(const Carrier& a, const Carrier& b) {
    return meet(a.bytes, a.nanoseconds, b.bytes, b.nanoseconds);
}

std::vector<Carrier> carriers_of(const std::vector<TimedCall>& calls,
                                 const std::vector<std::int64_t>& began) {
    std::vector<Carrier> carriers;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        auto carrier = std::find_if(carriers.begin(), carriers.end(), [&](const Carrier& known) {
            return known.comm == calls[i].comm;
        });
        if (carrier == carriers.end()) {
            carrier = carriers.insert(carriers.end(), Carrier{calls[i].comm});
        }
        carrier->bytes += static_cast<double>(calls[i].bytes);
        carrier->nanoseconds += static_cast<double>(calls[i].end - began[i]);
    }
    return carriers;
}

// How many communicators have calls among these that a call of this one may meet; itself too.
double sharing(const std::vector<Carrier>& carriers, const std::vector<TimedCall>& calls,
               const std::vector<std::size_t>& active, std::uint32_t comm) {
    const auto is = [](std::uint32_t wanted) {
        return [wanted](const Carrier& known) { return known.comm == wanted; };
    };
    const Carrier& own = *std::find_if(carriers.begin(), carriers.end(), is(comm));
    double count = 0;
    for (const Carrier& carrier : carriers) {
        const bool carries = std::any_of(active.begin(), active.end(), [&](std::size_t i) {
            return calls[i].comm == carrier.comm;
        });
        if (carrier.comm == comm || (carries && may_meet(own, carrier))) {
            count += 1;
        }
    }
    return count;
}

}  // namespace

bool meet(double bytes, double time, double other_bytes, double other_time) {
    const double one = bytes * other_time;
    const double other = other_bytes * time;
    return one < kFaster * other && other < kFaster * one;
}

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

// What part of the links each call had while it was carried, in the mean. Calls of one communicator
// go one after the other; those of several share the links they meet on. Which these are nobody
// says: a communicator within a host moves bytes many times as fast as one between hosts.
std::vector<double> CallTimes::parts_of_links(const std::vector<std::int64_t>& began) const {
    const std::vector<Carrier> carriers = carriers_of(current_, began);
    std::vector<double> had(current_.size(), 1);
    if (carriers.size() < 2) {
        return had;
    }
    std::vector<std::int64_t> times(began);
    for (const TimedCall& call : current_) {
        times.push_back(call.end);
    }
    std::sort(times.begin(), times.end());
    std::vector<std::size_t> order(current_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&began](std::size_t a, std::size_t b) { return began[a] < began[b]; });
    std::vector<double> alone(current_.size(), 0);
    std::vector<std::size_t> active;
    auto next = order.begin();
    for (std::size_t t = 0; t + 1 < times.size(); ++t) {
        for (; next != order.end() && began[*next] <= times[t]; ++next) {
            active.push_back(*next);
        }
        std::erase_if(active, [&](std::size_t i) { return current_[i].end <= times[t]; });
        const auto slice = static_cast<double>(times[t + 1] - times[t]);
        for (const std::size_t i : active) {
            alone[i] += slice / sharing(carriers, current_, active, current_[i].comm);
        }
    }
    for (std::size_t i = 0; i < had.size(); ++i) {
        const auto took = static_cast<double>(current_[i].end - began[i]);
        had[i] = took > 0 ? std::min(alone[i] / took, 1.0) : 1;
    }
    return had;
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
    const std::vector<double> parts = parts_of_links(began);
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
        places_[i].alone_ms.add(transfer_ms * parts[i]);
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
