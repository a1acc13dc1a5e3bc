// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/check_times.h"

#include <cmath>

#include "planner/simulator/problems.h"
#include "planner/simulator/simulator.h"

namespace deft::planner {
namespace {

class TimesChecker {
public:
    TimesChecker(const Plan& plan, const Profile& profile, const Fabric& fabric)
        : plan_(plan), profile_(profile), fabric_(fabric) {}

    std::vector<std::string> run() {
        check_times();
        return problems_.take();
    }

private:
    void report(std::string what) { problems_.report(std::move(what)); }

    void check_times();
    bool check_start(std::size_t x, double slack);
    double check_message_time(std::size_t x, double slack);
    void check_simulation(double slack);
    double cycle(std::int64_t iteration) const {
        const std::int64_t period = plan_.period;
        const std::int64_t whole =
            iteration >= 0 ? iteration / period : -((-iteration + period - 1) / period);
        return plan_.predicted.cycles[static_cast<std::size_t>(iteration - whole * period)] +
               static_cast<double>(whole * period) * plan_.predicted.iteration;
    }

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    Problems problems_;
};

void TimesChecker::check_times() {
    const Prediction& p = plan_.predicted;
    if (p.cycles.size() != plan_.period || !std::isfinite(p.iteration) || p.iteration <= 0) {
        report("predicted.iteration, cycles: no times");
        return;
    }
    const double slack = 1e-7 * p.iteration;
    std::vector<double> least_busy(fabric_.links.size(), 0.0);
    std::vector<std::uint64_t> message_of(fabric_.links.size(), ~std::uint64_t{0});
    for (std::size_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        if (!check_start(x, slack)) {
            return;
        }
        if (message_of[t.link] != t.message) {
            message_of[t.link] = t.message;
            least_busy[t.link] += check_message_time(x, slack);
        }
    }
    const double length = p.iteration * plan_.period;
    for (std::size_t j = 0; j < least_busy.size(); ++j) {
        if (least_busy[j] > length + slack) {
            report("links[" + std::to_string(j) + "]: carries more than the period holds");
        }
    }
    check_simulation(slack);
}

// False: it has no times that anything could be said of.
bool TimesChecker::check_start(std::size_t x, double slack) {
    const Transfer& t = plan_.transfers[x];
    const std::string where = at("transfers", x);
    if (!std::isfinite(t.start) || !std::isfinite(t.finish) || t.finish < t.start - slack) {
        report(where + "start, finish: not a span of time");
        return false;
    }
    if (t.start < cycle(t.generation.newest()) + profile_.buckets[t.bucket].ready - slack) {
        report(where + "start: before its gradient exists");
    }
    if (t.start < cycle(t.iteration) - slack) {
        report(where + "start: before its cycle");
    }
    return true;
}

// Of the message whose first transfer is x: what its link is busy with it, at least.
double TimesChecker::check_message_time(std::size_t x, double slack) {
    const Transfer& t = plan_.transfers[x];
    double bytes = 0;
    for (std::size_t y = x; y < plan_.transfers.size(); ++y) {
        const Transfer& other = plan_.transfers[y];
        if (other.link == t.link && other.message != t.message) {
            break;
        }
        bytes += other.link == t.link ? static_cast<double>(other.bytes()) : 0.0;
    }
    const Link& link = fabric_.links[t.link];
    const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
    if (t.finish - t.start < link.seconds(bytes, share) - slack) {
        report(at("transfers", x) + "finish: sooner than the link can");
    }
    // Latencies may overlap up to in_flight; bytes never do.
    return link.in_flight > 1 ? share * bytes / link.best_rate() : link.occupancy(bytes, share);
}

void TimesChecker::check_simulation(double slack) {
    const Prediction& p = plan_.predicted;
    const SimulationResult run = simulate(plan_, profile_, fabric_);
    const auto near = [slack](double a, double b) { return std::abs(a - b) <= slack; };
    bool same = !run.stuck && near(run.iteration, p.iteration);
    for (std::size_t x = 0; same && x < plan_.transfers.size(); ++x) {
        same = near(run.starts[x], plan_.transfers[x].start) &&
               near(run.finishes[x], plan_.transfers[x].finish);
    }
    for (std::size_t i = 0; same && i < run.cycles.size(); ++i) {
        same = near(run.cycles[i], p.cycles[i]);
    }
    if (!same) {
        report("predicted: execution gives other times");
    }
}

}  // namespace

std::vector<std::string> check_times(const Plan& plan, const Profile& profile,
                                     const Fabric& fabric) {
    return TimesChecker(plan, profile, fabric).run();
}

}  // namespace deft::planner
