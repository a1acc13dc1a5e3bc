// SPDX-License-Identifier: Apache-2.0
#include "shim/planner/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>

#include "shim/planner/compute_program.h"

namespace deft::planner {
namespace {

constexpr double kNever = INFINITY;
constexpr std::uint32_t kNone = ~std::uint32_t{0};

// Transfers of one link that travel together.
struct Message {
    std::uint32_t link = 0;
    std::uint32_t iteration = 0;
    Stage stage = Stage::Backward;
    double bytes = 0;
    double share = 1;
    std::vector<std::uint32_t> parts;  // indices into Plan::transfers
};

// A message under way in some period.
struct Flight {
    std::uint32_t message = 0;
    std::uint32_t period = 0;
    std::uint32_t hop = 0;
    double latency_ends = kNever;  // simulated time; set when the resource takes it
    double volume = 0;             // seconds of moving bytes left at full rate
    double demand = 0;             // bytes per second at full rate
    double start = 0;
};

struct Resource {
    std::deque<Flight> queue;  // the first `in_flight` are taken, the first of them moves bytes
    std::size_t taken = 0;
    std::uint32_t in_flight = 1;
};

// What a transfer's end allows: a delivery so many periods later, or a dependent all-gather.
struct Effect {
    std::uint32_t iteration = 0;
    std::uint32_t bucket = 0;
    std::int32_t periods = 0;
};

class Engine {
public:
    Engine(const Plan& plan, const Profile& profile, const Fabric& fabric,
           const Simulation& simulation, std::uint32_t iterations, double links_from)
        : plan_(plan),
          profile_(profile),
          fabric_(fabric),
          simulation_(simulation),
          iterations_(iterations),
          links_from_(links_from),
          program_(profile, plan.barrier, simulation, iterations) {
        prepare_links();
        prepare_messages();
        prepare_deliveries();
        changes_ = simulation.rate_changes;
        std::stable_sort(changes_.begin(), changes_.end(),
                         [](const RateChange& a, const RateChange& b) { return a.time < b.time; });
        factor_.assign(fabric.links.size(), 1.0);
        busy_.assign(fabric.links.size(), 0.0);
        cycle_start_.assign(iterations + 1, kNever);
        exposed_at_.assign(iterations + 1, 0.0);
        first_start_.assign(plan.transfers.size(), {});
    }

    SimulationResult run();

private:
    void prepare_links();
    void prepare_messages();
    void prepare_deliveries();
    void settle();
    void launch();
    bool launch_next(std::uint32_t link);
    double release(const Message& message, std::uint32_t period) const;
    void enter(std::uint32_t resource, Flight flight);
    void take(Resource& resource);
    void complete(Resource& resource);
    void set_rates();
    double next_event() const;
    void advance(double until);
    void land(const Flight& flight);

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    const Simulation& simulation_;
    const std::uint32_t iterations_;
    const double links_from_;  // no transfer starts before
    ComputeProgram program_;

    std::vector<Message> messages_;
    std::vector<std::vector<std::uint32_t>> by_link_;  // messages in launch order
    struct Head {
        std::uint32_t index = 0;
        std::uint32_t period = 0;
    };
    std::vector<Head> heads_;
    std::vector<Resource> resources_;
    std::vector<std::vector<std::uint32_t>> route_;  // link -> resources
    std::vector<std::uint32_t> group_;               // link -> group or kNone
    std::vector<std::uint32_t> flying_;              // messages under way per link

    std::vector<std::vector<Effect>> effects_;  // by transfer
    std::vector<std::uint32_t> pending_all_;    // by iteration
    std::vector<std::uint32_t> pending_;        // by iteration and bucket
    std::vector<std::uint32_t> scattering_;     // by newest iteration and bucket
    std::vector<double> done_all_;              // work clock at which pending reached zero
    std::vector<double> done_;

    std::vector<double> rate_;  // per resource: of its moving flight
    std::vector<double> factor_;
    std::vector<RateChange> changes_;
    std::size_t next_change_ = 0;
    std::size_t next_mark_ = 0;
    double now_ = 0;
    double work_ = 0;
    double work_rate_ = 1;
    double waited_ = 0;
    std::vector<double> busy_;
    std::vector<double> cycle_start_;
    std::vector<double> exposed_at_;
    struct Span {
        std::uint32_t period = 0;
        double start = 0;
        double finish = 0;
    };
    std::vector<Span> first_start_;  // last instance seen of each transfer
    SimulationResult result_;
};

void Engine::prepare_links() {
    std::vector<std::string> names;
    for (std::uint32_t j = 0; j < fabric_.links.size(); ++j) {
        const Link& link = fabric_.links[j];
        std::vector<std::uint32_t> route;
        const auto find = [&](const std::string& name) {
            const auto at = std::find(names.begin(), names.end(), name);
            const auto index = static_cast<std::uint32_t>(at - names.begin());
            if (at == names.end()) {
                names.push_back(name);
                resources_.emplace_back();
            }
            resources_[index].in_flight = std::max(resources_[index].in_flight, link.in_flight);
            return index;
        };
        if (link.hops.empty()) {
            route.push_back(find(std::string("\1") + link.name));
        }
        for (const Hop& hop : link.hops) {
            route.push_back(find(hop.resource));
        }
        route_.push_back(std::move(route));
        std::uint32_t group = kNone;
        for (std::uint32_t g = 0; g < fabric_.groups.size(); ++g) {
            if (!link.group.empty() && fabric_.groups[g].name == link.group) {
                group = g;
            }
        }
        group_.push_back(group);
    }
    flying_.assign(fabric_.links.size(), 0);
    rate_.assign(resources_.size(), 0.0);
}

void Engine::prepare_messages() {
    by_link_.resize(fabric_.links.size());
    heads_.resize(fabric_.links.size());
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        auto& line = by_link_[t.link];
        const bool joins =
            !line.empty() &&
            plan_.transfers[messages_[line.back()].parts.back()].message == t.message;
        if (!joins) {
            line.push_back(static_cast<std::uint32_t>(messages_.size()));
            messages_.push_back({t.link,
                                 t.iteration,
                                 t.stage,
                                 0,
                                 t.operation == Operation::AllReduce ? 1.0 : 0.5,
                                 {}});
        }
        Message& message = messages_[line.back()];
        message.bytes += static_cast<double>(t.bytes());
        message.parts.push_back(x);
    }
}

void Engine::prepare_deliveries() {
    const std::size_t n = profile_.size();
    const auto period = static_cast<std::int32_t>(plan_.period);
    effects_.resize(plan_.transfers.size());
    std::vector<std::vector<std::uint32_t>> of_bucket(n);
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        if (plan_.transfers[x].operation != Operation::ReduceScatter) {
            of_bucket[plan_.transfers[x].bucket].push_back(x);
        }
    }
    for (const Delivery& d : plan_.deliveries) {
        for (const std::uint32_t x : of_bucket[d.bucket]) {
            const Transfer& t = plan_.transfers[x];
            const std::int32_t apart = t.generation.first - d.generation.first;
            if (t.generation.count == d.generation.count && apart % period == 0 &&
                t.begin < d.end && d.begin < t.end) {
                effects_[x].push_back({d.iteration, d.bucket, apart / period});
            }
        }
    }
    pending_all_.assign(iterations_, 0);
    pending_.assign(iterations_ * n, 0);
    done_all_.assign(iterations_, 0.0);
    done_.assign(iterations_ * n, 0.0);
    scattering_.assign(iterations_ * n, 0);
    const std::uint32_t periods = (iterations_ + plan_.period - 1) / plan_.period;
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        for (std::int64_t q = 0; q <= periods + 1; ++q) {
            const std::int64_t newest = q * period + t.generation.newest();
            if (newest < 0) {
                continue;
            }
            if (t.operation == Operation::ReduceScatter && newest < iterations_) {
                ++scattering_[static_cast<std::size_t>(newest) * n + t.bucket];
            }
            for (const Effect& e : effects_[x]) {
                const std::int64_t at = (q + e.periods) * period + e.iteration;
                if (at >= 0 && at < iterations_) {
                    ++pending_all_[static_cast<std::size_t>(at)];
                    ++pending_[static_cast<std::size_t>(at) * n + e.bucket];
                }
            }
        }
    }
}

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

bool Engine::launch_next(std::uint32_t j) {
    Head& head = heads_[j];
    if (by_link_[j].empty() || head.period * plan_.period >= iterations_) {
        return false;
    }
    const std::uint32_t index = by_link_[j][head.index];
    const Message& message = messages_[index];
    const auto before_start = [&](std::uint32_t x) {
        return static_cast<std::int64_t>(head.period) * plan_.period +
                   plan_.transfers[x].generation.newest() <
               0;
    };
    const bool skip = std::all_of(message.parts.begin(), message.parts.end(), before_start);
    // Rounding: a release computed as a sum may lie a hair beyond the clock that reached it.
    if (!skip && release(message, head.period) > work_ * (1 + 1e-14)) {
        return false;
    }
    if (!skip) {
        Flight flight;
        flight.message = index;
        flight.period = head.period;
        flight.start = kNever;
        ++flying_[j];
        enter(route_[j][0], flight);
    }
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
        first_start_[x] = {flight.period, flight.start, now_};
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
    std::vector<double> wanted(fabric_.groups.size(), 0.0);
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        rate_[r] = 0;
        if (resources_[r].taken == 0 || resources_[r].queue.front().latency_ends > now_) {
            continue;
        }
        const Flight& flight = resources_[r].queue.front();
        const std::uint32_t j = messages_[flight.message].link;
        rate_[r] = factor_[j] / (computing ? 1 + fabric_.links[j].overlap_penalty : 1);
        if (group_[j] != kNone) {
            wanted[group_[j]] += rate_[r] * flight.demand;
        }
    }
    for (std::size_t r = 0; r < resources_.size(); ++r) {
        if (rate_[r] > 0) {
            const std::uint32_t g = group_[messages_[resources_[r].queue.front().message].link];
            if (g != kNone && wanted[g] > fabric_.groups[g].rate) {
                rate_[r] *= fabric_.groups[g].rate / wanted[g];
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

double Engine::next_event() const {
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
    for (std::size_t j = 0; j < by_link_.size(); ++j) {
        if (!by_link_[j].empty()) {
            const double from = release(messages_[by_link_[j][heads_[j].index]], heads_[j].period);
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
    // Marks passed on the way get their simulated time by interpolation: the rate is constant.
    const double work = work_ + dt * work_rate_;
    auto& marks = program_.marks();
    const bool waiting = work_ >= program_.frontier() && !program_.finished();
    if (waiting) {
        waited_ += dt;
    }
    for (; next_mark_ < marks.size() && marks[next_mark_].work <= work * (1 + 1e-14);
         ++next_mark_) {
        const ComputeProgram::Mark& mark = marks[next_mark_];
        if (mark.kind == ComputeProgram::Mark::Kind::BackwardStart) {
            cycle_start_[mark.iteration] = std::max(0.0, now_ + (mark.work - work_) / work_rate_);
            exposed_at_[mark.iteration] = waited_;
        }
        if (simulation_.timeline) {
            const double at = std::max(0.0, now_ + (mark.work - work_) / work_rate_);
            using Kind = ComputeProgram::Mark::Kind;
            auto& line = result_.timeline;
            if (mark.kind == Kind::BackwardStart || mark.kind == Kind::ForwardStart) {
                for (auto it = line.rbegin(); it != line.rend(); ++it) {
                    if (it->kind == Interval::Kind::Forward && it->finish == kNever) {
                        it->finish = at;
                        break;
                    }
                }
                Interval bar;
                bar.kind = mark.kind == Kind::BackwardStart ? Interval::Kind::Backward
                                                            : Interval::Kind::Forward;
                bar.iteration = mark.iteration;
                bar.bucket = mark.bucket;
                bar.start = at;
                bar.finish = kNever;
                if (mark.iteration < iterations_) {
                    line.push_back(bar);
                }
            } else {
                for (auto it = line.rbegin(); it != line.rend(); ++it) {
                    if (it->finish == kNever) {
                        it->finish = at;
                        break;
                    }
                }
            }
        }
    }
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
        settle();
    }
    if (result_.stuck) {
        result_.iteration = kNever;
        return std::move(result_);
    }
    advance(now_);
    for (std::uint32_t i = 0; i < iterations_; ++i) {
        result_.iterations.push_back(cycle_start_[i + 1] - cycle_start_[i]);
    }
    const std::uint32_t from = iterations_ >= plan_.period ? iterations_ - plan_.period : 0;
    result_.iteration =
        (cycle_start_[iterations_] - cycle_start_[from]) / static_cast<double>(iterations_ - from);
    result_.exposed =
        (exposed_at_[iterations_] - exposed_at_[from]) / static_cast<double>(iterations_ - from);
    for (std::uint32_t i = from; i < iterations_; ++i) {
        result_.cycles.push_back(cycle_start_[i] - cycle_start_[from]);
    }
    for (double& busy : busy_) {
        result_.link_busy.push_back(now_ > 0 ? busy / now_ : 0);
    }
    for (const Span& span : first_start_) {
        const double base = cycle_start_[std::min(iterations_, span.period * plan_.period)];
        result_.starts.push_back(span.start - base);
        result_.finishes.push_back(span.finish - base);
    }
    return std::move(result_);
}

// Iterations the oldest gradient of a transfer or an update reaches back.
std::uint32_t reach(const Plan& plan) {
    std::int32_t most = 0;
    for (const Transfer& t : plan.transfers) {
        most = std::max(most, -t.generation.first);
    }
    for (const Delivery& d : plan.deliveries) {
        most = std::max(most, static_cast<std::int32_t>(d.iteration) - d.generation.first);
    }
    return static_cast<std::uint32_t>(most);
}

// Seconds per iteration the busiest link is held at most: latencies one by one, under compute.
double load(const Plan& plan, const Fabric& fabric) {
    std::vector<double> held(fabric.links.size(), 0.0);
    std::vector<double> bytes(fabric.groups.size(), 0.0);
    for (const Transfer& t : plan.transfers) {
        const Link& link = fabric.links[t.link];
        const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
        held[t.link] +=
            link.seconds(static_cast<double>(t.bytes()), share) * (1 + link.overlap_penalty);
        for (std::size_t g = 0; g < fabric.groups.size(); ++g) {
            bytes[g] +=
                fabric.groups[g].name == link.group ? share * static_cast<double>(t.bytes()) : 0.0;
        }
    }
    double most = 0;
    for (const double seconds : held) {
        most = std::max(most, seconds);
    }
    for (std::size_t g = 0; g < bytes.size(); ++g) {
        most = std::max(most, bytes[g] / fabric.groups[g].rate);
    }
    return most / plan.period;
}

}  // namespace

SimulationResult simulate(const Plan& plan, const Profile& profile, const Fabric& fabric,
                          const Simulation& simulation) {
    if (simulation.iterations != 0) {
        return Engine(plan, profile, fabric, simulation, simulation.iterations, 0).run();
    }
    const std::uint32_t back = reach(plan) / plan.period + 1;
    SimulationResult run =
        Engine(plan, profile, fabric, simulation, (back + 2) * plan.period, 0).run();
    // Updates that may lag hide an overload for as long as the lag grows, which is for ever where
    // it is slight. Start from the other side: with every queue full.
    const bool lags = std::any_of(plan.deliveries.begin(), plan.deliveries.end(),
                                  [](const Delivery& d) { return d.delay() > 0; });
    if (lags && !run.stuck && load(plan, fabric) > 0.95 * run.iteration) {
        const double full = (back + 1) * plan.period * run.iteration;
        SimulationResult other =
            Engine(plan, profile, fabric, simulation, (2 * back + 4) * plan.period, full).run();
        if (!other.stuck && other.iteration > run.iteration) {
            return other;
        }
    }
    return run;
}

}  // namespace deft::planner
