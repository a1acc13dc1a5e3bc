// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/engine.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {

using namespace engine;

// Lets compute run on while what it awaits is there.
void Engine::settle() {
    const std::size_t n = profile_.size();
    while (!program_.finished()) {
        const std::uint32_t it = program_.awaited_iteration();
        const std::uint32_t bucket = program_.awaited_bucket();
        if (bucket == ComputeProgram::kAll) {
            if (pending_all_[it] != 0) {
                return;
            }
            program_.resume(done_all_[it]);
        } else {
            if (pending_[it * n + bucket] != 0) {
                return;
            }
            program_.resume(done_[it * n + bucket]);
        }
    }
}

// Work clock at which a message may start; never if that is not known yet.
double Engine::release(const Message& message, std::uint32_t period) const {
    const std::size_t n = profile_.size();
    const std::uint32_t it = period * plan_.period + message.iteration;
    if (it >= iterations_) {
        return kNever;
    }
    double at = program_.stage_start(it, message.stage);
    for (const std::uint32_t x : message.parts) {
        const Transfer& t = plan_.transfers[x];
        const std::int64_t newest =
            static_cast<std::int64_t>(period) * plan_.period + t.generation.newest();
        if (newest < 0) {
            continue;
        }
        if (newest >= iterations_) {
            return kNever;
        }
        const auto newest_at = static_cast<std::uint32_t>(newest);
        at = std::max(at, program_.ready(newest_at, t.bucket));
        if (t.operation == Operation::AllGather && scattering_[newest_at * n + t.bucket] != 0) {
            return kNever;
        }
    }
    return at;
}

// Infinite while not known; what is known does not change any more. Before the first gradient of a
// whole message exists there is nothing to send: released at once, for launch_next to skip.
double Engine::head_release(std::uint32_t j) {
    Head& head = heads_[j];
    if (head.from == kNever) {
        const Message& message = messages_[by_link_[j][head.index]];
        const std::int64_t base = static_cast<std::int64_t>(head.period) * plan_.period;
        head.from = base + message.newest < 0 ? -1 : release(message, head.period);
    }
    return head.from;
}

bool Engine::launch_next(std::uint32_t j) {
    Head& head = heads_[j];
    if (by_link_[j].empty() || head.period * plan_.period >= iterations_) {
        return false;
    }
    // Rounding: a release computed as a sum may lie a hair beyond the clock that reached it.
    const double from = head_release(j);
    if (from > work_ * (1 + 1e-14)) {
        return false;
    }
    if (from >= 0) {
        Flight flight;
        flight.message = by_link_[j][head.index];
        flight.period = head.period;
        flight.start = kNever;
        ++flying_[j];
        enter(route_[j][0], flight);
    }
    head.from = kNever;
    if (++head.index == by_link_[j].size()) {
        head.index = 0;
        ++head.period;
    }
    return true;
}

void Engine::launch() {
    // Cheapest fair order over links: round by round, so that links that meet in one resource
    // alternate.
    if (now_ < links_from_) {
        return;
    }
    for (bool any = true; any;) {
        any = false;
        for (std::uint32_t j = 0; j < by_link_.size(); ++j) {
            any = launch_next(j) || any;
        }
    }
}

void Engine::enter(std::uint32_t resource, Flight flight) {
    const Message& message = messages_[flight.message];
    const Link& link = fabric_.links[message.link];
    const CostCurve& cost = link.hops.empty() ? link.cost : link.hops[flight.hop].cost;
    const double latency = message.share * cost.latency();
    flight.volume = std::max(0.0, message.share * cost.seconds(message.bytes) - latency);
    flight.demand = flight.volume > 0 ? message.share * message.bytes / flight.volume : 0;
    flight.latency_ends = kNever;
    resources_[resource].queue.push_back(flight);
    take(resources_[resource]);
}

void Engine::take(Resource& resource) {
    while (resource.taken < resource.queue.size() && resource.taken < resource.in_flight) {
        Flight& flight = resource.queue[resource.taken++];
        const Message& message = messages_[flight.message];
        const Link& link = fabric_.links[message.link];
        const CostCurve& cost = link.hops.empty() ? link.cost : link.hops[flight.hop].cost;
        const double extra = flight.hop == 0 ? link.per_message : 0;
        flight.latency_ends = now_ + extra + message.share * cost.latency();
        if (flight.hop == 0) {
            flight.start = now_;
        }
    }
}

void Engine::land(const Flight& flight) {
    const std::size_t n = profile_.size();
    const Message& message = messages_[flight.message];
    --flying_[message.link];
    for (const std::uint32_t x : message.parts) {
        const Transfer& t = plan_.transfers[x];
        last_seen_[x] = {flight.period, flight.start, now_};
        if (steady_) {
            const double from = cycle_start_[flight.period * plan_.period + t.iteration];
            steady_->ended(x, flight.period, now_ - from);
        }
        const std::int64_t newest =
            static_cast<std::int64_t>(flight.period) * plan_.period + t.generation.newest();
        if (newest < 0) {
            continue;
        }
        if (t.operation == Operation::ReduceScatter && newest < iterations_) {
            --scattering_[static_cast<std::size_t>(newest) * n + t.bucket];
        }
        for (const Effect& e : effects_[x]) {
            const std::int64_t at =
                (static_cast<std::int64_t>(flight.period) + e.periods) * plan_.period + e.iteration;
            if (at < 0 || at >= iterations_) {
                continue;
            }
            const auto i = static_cast<std::size_t>(at);
            if (--pending_all_[i] == 0) {
                done_all_[i] = work_;
            }
            if (--pending_[i * n + e.bucket] == 0) {
                done_[i * n + e.bucket] = work_;
            }
        }
        if (simulation_.timeline) {
            result_.timeline.push_back({Interval::Kind::Transfer,
                                        flight.period * plan_.period + t.iteration, t.bucket,
                                        t.link, t.operation, t.begin, t.end, flight.start, now_});
        }
    }
}

void Engine::complete(Resource& resource) {
    Flight flight = resource.queue.front();
    resource.queue.pop_front();
    --resource.taken;
    const auto& route = route_[messages_[flight.message].link];
    if (++flight.hop < route.size()) {
        enter(route[flight.hop], flight);
    } else {
        land(flight);
    }
    take(resource);
}

// Rates hold until the next event.
void Engine::set_rates() {
    const bool computing = work_ < program_.frontier();
    std::fill(wanted_.begin(), wanted_.end(), 0.0);
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        rate_[r] = 0;
        if (resources_[r].taken == 0 || resources_[r].queue.front().latency_ends > now_) {
            continue;
        }
        const Flight& flight = resources_[r].queue.front();
        const std::uint32_t j = messages_[flight.message].link;
        rate_[r] = factor_[j] / (computing ? 1 + fabric_.links[j].overlap_penalty : 1);
        if (group_[j] != kNone) {
            wanted_[group_[j]] += rate_[r] * flight.demand;
        }
    }
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        if (rate_[r] > 0) {
            const std::uint32_t g = group_[messages_[resources_[r].queue.front().message].link];
            if (g != kNone && wanted_[g] > fabric_.groups[g].rate) {
                rate_[r] *= fabric_.groups[g].rate / wanted_[g];
            }
        }
    }
    double slowdown = 0;
    for (std::size_t j = 0; j < flying_.size(); ++j) {
        if (flying_[j] != 0) {
            slowdown = std::max(slowdown, fabric_.links[j].compute_slowdown);
        }
    }
    work_rate_ = 1 / (1 + slowdown);
}

double Engine::next_event() {
    double at = kNever;
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        const Resource& resource = resources_[r];
        for (std::size_t i = 0; i < resource.taken; ++i) {
            if (resource.queue[i].latency_ends > now_) {
                at = std::min(at, resource.queue[i].latency_ends);
            }
        }
        if (rate_[r] > 0) {
            at = std::min(at, now_ + resource.queue.front().volume / rate_[r]);
        }
    }
    if (next_change_ < changes_.size()) {
        at = std::min(at, std::max(now_, changes_[next_change_].time));
    }
    if (now_ < links_from_) {
        at = std::min(at, links_from_);
    }
    // Events of the work clock.
    double work = kNever;
    if (work_ < program_.frontier()) {
        work = program_.frontier();
    }
    for (std::uint32_t j = 0; j < by_link_.size(); ++j) {
        if (!by_link_[j].empty() && heads_[j].period * plan_.period < iterations_) {
            const double from = head_release(j);
            if (from > work_) {
                work = std::min(work, from);
            }
        }
    }
    if (work < kNever) {
        at = std::min(at, now_ + (work - work_) / work_rate_);
    }
    return at;
}

void Engine::advance(double until) {
    const double dt = until - now_;
    const double work = work_ + dt * work_rate_;
    if (work_ >= program_.frontier() && !program_.finished()) {
        waited_ += dt;
    }
    pass_marks(work);
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        if (rate_[r] > 0) {
            double& volume = resources_[r].queue.front().volume;
            volume -= dt * rate_[r];
            // What rounding leaves of a transfer that ends now.
            if (volume <= 1e-13 * (now_ + dt)) {
                volume = 0;
            }
        }
    }
    for (std::size_t j = 0; j < flying_.size(); ++j) {
        if (flying_[j] != 0) {
            busy_[j] += dt;
        }
    }
    now_ = until;
    work_ = work;
    // Snap to the value the next event was computed from.
    if (std::abs(work_ - program_.frontier()) <= 1e-14 * work_) {
        work_ = program_.frontier();
    }
}

// Marks passed on the way to `work` get their simulated time by interpolation: the rate is
// constant.
void Engine::pass_marks(double work) {
    using Kind = ComputeProgram::Mark::Kind;
    auto& marks = program_.marks();
    for (; next_mark_ < marks.size() && marks[next_mark_].work <= work * (1 + 1e-14);
         ++next_mark_) {
        const ComputeProgram::Mark& mark = marks[next_mark_];
        const double at = std::max(0.0, now_ + (mark.work - work_) / work_rate_);
        if (mark.kind == Kind::BackwardStart) {
            cycle_start_[mark.iteration] = at;
            exposed_at_[mark.iteration] = waited_;
            if (steady_) {
                steady_->began(mark.iteration, at);
            }
        }
        if (simulation_.timeline) {
            draw(mark, at);
        }
    }
}

// The bar that a mark ends, and the one that it begins.
void Engine::draw(const ComputeProgram::Mark& mark, double at) {
    using Kind = ComputeProgram::Mark::Kind;
    const bool begins = mark.kind == Kind::BackwardStart || mark.kind == Kind::ForwardStart;
    auto& line = result_.timeline;
    const auto open = std::find_if(line.rbegin(), line.rend(), [&](const Interval& bar) {
        return bar.finish == kNever && (!begins || bar.kind == Interval::Kind::Forward);
    });
    if (open != line.rend()) {
        open->finish = at;
    }
    if (begins && mark.iteration < iterations_) {
        Interval bar;
        bar.kind =
            mark.kind == Kind::BackwardStart ? Interval::Kind::Backward : Interval::Kind::Forward;
        bar.iteration = mark.iteration;
        bar.bucket = mark.bucket;
        bar.start = at;
        bar.finish = kNever;
        line.push_back(bar);
    }
}

SimulationResult Engine::run() {
    settle();
    while (!program_.finished() || work_ < program_.frontier()) {
        while (next_change_ < changes_.size() && changes_[next_change_].time <= now_) {
            factor_[changes_[next_change_].link] = changes_[next_change_].factor;
            ++next_change_;
        }
        launch();
        set_rates();
        const double at = next_event();
        if (at == kNever) {
            result_.stuck = true;
            break;
        }
        advance(at);
        ++result_.events;
        if (steady_ && steady_->reached() != 0) {
            iterations_ = steady_->reached();
            result_.steady = true;
            break;
        }
        complete_all();
        settle();
    }
    if (result_.stuck) {
        result_.iteration = kNever;
        return std::move(result_);
    }
    advance(now_);
    summarise();
    return std::move(result_);
}

// Whatever has arrived by now; an arrival may let others through.
void Engine::complete_all() {
    for (bool any = true; any;) {
        any = false;
        for (Resource& resource : resources_) {
            if (resource.taken != 0 && resource.queue.front().latency_ends <= now_ &&
                resource.queue.front().volume <= 0) {
                complete(resource);
                any = true;
            }
        }
    }
}

// The result of a run that has come to its end: means over the last period, and over the last half
// of a run that should have become steady and has not: it may swing between two states for good.
void Engine::summarise() {
    for (std::uint32_t i = 0; i < iterations_; ++i) {
        result_.iterations.push_back(cycle_start_[i + 1] - cycle_start_[i]);
    }
    const std::uint32_t last = iterations_ >= plan_.period ? iterations_ - plan_.period : 0;
    const std::uint32_t from =
        steady_ && !result_.steady ? iterations_ / plan_.period / 2 * plan_.period : last;
    result_.iteration =
        (cycle_start_[iterations_] - cycle_start_[from]) / static_cast<double>(iterations_ - from);
    result_.exposed =
        (exposed_at_[iterations_] - exposed_at_[from]) / static_cast<double>(iterations_ - from);
    for (std::uint32_t i = last; i < iterations_; ++i) {
        result_.cycles.push_back(cycle_start_[i] - cycle_start_[last]);
    }
    for (double& busy : busy_) {
        result_.link_busy.push_back(now_ > 0 ? busy / now_ : 0);
    }
    for (std::size_t x = 0; x < last_seen_.size(); ++x) {
        // Counted from its own iteration: a lag that still grows must not move it before that.
        const Span& span = last_seen_[x];
        const std::uint32_t at = plan_.transfers[x].iteration;
        const double offset = at < result_.cycles.size() ? result_.cycles[at] : 0;
        const double base =
            cycle_start_[std::min(iterations_, span.period * plan_.period + at)] - offset;
        result_.starts.push_back(span.start - base);
        result_.finishes.push_back(span.finish - base);
    }
}

}  // namespace deft::planner
