// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "planner/model/progress.h"
#include "planner/simulator/simulator.h"

namespace deft::planner {
namespace {

class Checker {
public:
    Checker(const Plan& plan, const Profile& profile, const Fabric& fabric, const Options& options)
        : plan_(plan), profile_(profile), fabric_(fabric), options_(options) {}

    std::vector<std::string> run() {
        check_form();
        if (problems_.empty()) {
            check_deliveries();
            check_coverage();
            check_messages();
            check_caps();
        }
        if (problems_.empty()) {
            check_times();
        }
        return std::move(problems_);
    }

private:
    void report(std::string what) {
        if (problems_.size() < 20) {
            problems_.push_back(std::move(what));
        }
    }
    static std::string at(const char* what, std::size_t index) {
        return std::string(what) + "[" + std::to_string(index) + "]: ";
    }

    // What a transfer contributes to one delivery.
    struct Part {
        std::uint64_t begin, end;
        std::int64_t cycle;
        Stage stage;
        std::size_t order;  // its index among the transfers, too
    };
    using Feeding = std::array<std::vector<Part>, 3>;  // by operation

    void check_form();
    void check_inputs();
    void check_form(std::size_t x, const Transfer& t);
    template <class Entry>
    void check_form(const Entry& entry, const std::string& where, const char* too_early);
    void check_deliveries();
    void check_coverage();
    Feeding feeding_of(const Delivery& d, const std::vector<std::size_t>& among) const;
    static bool covers_once(const Delivery& d, Feeding& feeding);
    void check_order(const Delivery& d, const Feeding& feeding);
    void check_messages();
    void check_caps();
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
    const Options& options_;
    std::vector<std::string> problems_;
};

void Checker::check_form() {
    check_inputs();
    if (!problems_.empty()) {
        return;
    }
    for (std::size_t x = 0; x < plan_.transfers.size(); ++x) {
        check_form(x, plan_.transfers[x]);
    }
    for (std::size_t i = 0; i < plan_.deliveries.size(); ++i) {
        check_form(plan_.deliveries[i], at("deliveries", i), "delivered before it exists");
    }
}

// Whether the plan belongs to this profile and this fabric at all.
void Checker::check_inputs() {
    if (const std::string why = profile_.problem(); !why.empty()) {
        report("profile: " + why);
        return;
    }
    if (const std::string why = fabric_.problem(); !why.empty()) {
        report("fabric: " + why);
        return;
    }
    if (plan_.period == 0 || plan_.period > 1000000) {
        report("period: outside 1..1000000");
        return;
    }
    const auto& buckets = profile_.buckets;
    if (!std::equal(
            buckets.begin(), buckets.end(), plan_.bucket_bytes.begin(), plan_.bucket_bytes.end(),
            [](const Bucket& bucket, std::uint64_t bytes) { return bucket.bytes == bytes; })) {
        report("bucket_bytes: the plan is for other buckets");
    }
    const auto& links = fabric_.links;
    if (!std::equal(links.begin(), links.end(), plan_.links.begin(), plan_.links.end(),
                    [](const Link& link, const std::string& name) { return link.name == name; })) {
        report("links: the plan is for other links");
    }
}

// What transfers and deliveries have in common: bytes of a bucket, of a generation, in an
// iteration.
template <class Entry>
void Checker::check_form(const Entry& entry, const std::string& where, const char* too_early) {
    if (entry.bucket >= plan_.bucket_bytes.size()) {
        report(where + "bucket: no such bucket");
    } else if (entry.begin >= entry.end || entry.end > plan_.bucket_bytes[entry.bucket]) {
        report(where + "begin, end: not a range of the bucket");
    }
    if (entry.iteration >= plan_.period) {
        report(where + "iteration: beyond the period");
    }
    if (entry.generation.count == 0 || entry.generation.count > 1000000 ||
        entry.generation.first < -1000000 ||
        entry.generation.first >= static_cast<std::int64_t>(plan_.period)) {
        report(where + "generation: out of range");
    } else if (entry.generation.newest() > static_cast<std::int64_t>(entry.iteration)) {
        report(where + "generation: " + too_early);
    }
}

void Checker::check_form(std::size_t x, const Transfer& t) {
    const std::string where = at("transfers", x);
    check_form(t, where, "starts before the gradient exists");
    if (t.link >= plan_.links.size()) {
        report(where + "link: no such link");
    }
    if (t.order != x) {
        report(where + "order: ranks could launch in different order");
    }
    if (x > 0 && std::tuple(t.iteration, t.stage) <
                     std::tuple(plan_.transfers[x - 1].iteration, plan_.transfers[x - 1].stage)) {
        report(where + "iteration, stage: earlier than the transfer in front");
    }
}

// Every iteration's gradient of every byte goes into exactly one delivery.
void Checker::check_deliveries() {
    struct Piece {
        std::uint64_t begin, end;
        std::uint32_t iteration;  // modulo the period
    };
    std::vector<std::vector<Piece>> of_bucket(profile_.size());
    const auto period = static_cast<std::int64_t>(plan_.period);
    std::uint64_t pieces = 0;
    for (const Delivery& d : plan_.deliveries) {
        pieces += d.generation.count;
        if (pieces > 10000000) {
            report("deliveries: too many");
            return;
        }
        for (std::uint32_t g = 0; g < d.generation.count; ++g) {
            const std::int64_t iteration =
                ((d.generation.first + std::int64_t{g}) % period + period) % period;
            of_bucket[d.bucket].push_back({d.begin, d.end, static_cast<std::uint32_t>(iteration)});
        }
    }
    for (std::size_t b = 0; b < of_bucket.size(); ++b) {
        auto& list = of_bucket[b];
        std::sort(list.begin(), list.end(), [](const Piece& x, const Piece& y) {
            return std::tuple(x.iteration, x.begin) < std::tuple(y.iteration, y.begin);
        });
        std::size_t i = 0;
        for (std::uint32_t iteration = 0; iteration < plan_.period; ++iteration) {
            std::uint64_t covered = 0;
            for (; i < list.size() && list[i].iteration == iteration; ++i) {
                if (list[i].begin != covered) {
                    break;
                }
                covered = list[i].end;
            }
            if (covered != profile_.buckets[b].bytes ||
                (i < list.size() && list[i].iteration == iteration)) {
                report("deliveries: bucket " + std::to_string(b) + ", gradient of iteration " +
                       std::to_string(iteration) + ": not every byte exactly once");
                return;
            }
        }
    }
}

// Every delivery is fed by transfers that cover it exactly once and end in time.
void Checker::check_coverage() {
    std::vector<std::vector<std::size_t>> of_bucket(profile_.size());
    for (std::size_t x = 0; x < plan_.transfers.size(); ++x) {
        of_bucket[plan_.transfers[x].bucket].push_back(x);
    }
    std::vector<std::uint32_t> used(plan_.transfers.size(), 0);
    for (std::size_t i = 0; i < plan_.deliveries.size(); ++i) {
        const Delivery& d = plan_.deliveries[i];
        Feeding feeding = feeding_of(d, of_bucket[d.bucket]);
        for (const std::vector<Part>& list : feeding) {
            for (const Part& part : list) {
                ++used[part.order];
            }
        }
        if (!covers_once(d, feeding)) {
            report(at("deliveries", i) + "its transfers do not cover it exactly once");
            continue;
        }
        check_order(d, feeding);
    }
    for (std::size_t x = 0; x < used.size(); ++x) {
        if (used[x] != 1) {
            report(at("transfers", x) + (used[x] == 0 ? "nobody receives it" : "delivered twice"));
        }
    }
}

// The transfers that carry bytes of this delivery.
Checker::Feeding Checker::feeding_of(const Delivery& d,
                                     const std::vector<std::size_t>& among) const {
    const auto period = static_cast<std::int64_t>(plan_.period);
    Feeding feeding;
    for (const std::size_t x : among) {
        const Transfer& t = plan_.transfers[x];
        const std::int64_t apart = std::int64_t{d.generation.first} - t.generation.first;
        if (t.generation.count == d.generation.count && apart % period == 0 && t.begin < d.end &&
            d.begin < t.end) {
            feeding[static_cast<std::size_t>(t.operation)].push_back(
                {t.begin, t.end, t.iteration + apart, t.stage, x});
        }
    }
    return feeding;
}

bool Checker::covers_once(const Delivery& d, Feeding& feeding) {
    const auto covers = [&](std::vector<Part>& list) {
        std::sort(list.begin(), list.end(),
                  [](const Part& a, const Part& b) { return a.begin < b.begin; });
        std::uint64_t at_byte = d.begin;
        for (const Part& part : list) {
            if (part.begin != at_byte) {
                return false;
            }
            at_byte = part.end;
        }
        return at_byte == d.end;
    };
    auto& [whole, scatter, gather] = feeding;
    return whole.empty() ? covers(scatter) && covers(gather)
                         : scatter.empty() && gather.empty() && covers(whole);
}

// A gather follows the scatter of its bytes, and everything starts before the update.
void Checker::check_order(const Delivery& d, const Feeding& feeding) {
    const auto& [whole, scatter, gather] = feeding;
    for (const Part& g : gather) {
        for (const Part& s : scatter) {
            if (s.begin < g.end && g.begin < s.end &&
                std::tuple(g.cycle, g.stage, g.order) < std::tuple(s.cycle, s.stage, s.order)) {
                report(at("transfers", g.order) + "all-gather before its reduce-scatter");
            }
        }
    }
    for (const std::vector<Part>& list : feeding) {
        for (const Part& part : list) {
            // After the update only layers that wait for themselves can still be served.
            const bool late = part.cycle > d.iteration ||
                              (part.cycle == d.iteration && part.stage == Stage::Forward &&
                               plan_.barrier == Barrier::Update);
            if (late) {
                report(at("transfers", part.order) + "starts after the update that needs it");
            }
        }
    }
}

void Checker::check_messages() {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> last;  // (link, message)
    std::vector<std::size_t> previous(fabric_.links.size(), ~std::size_t{0});
    for (std::size_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        const auto found = last.find({t.link, t.message});
        if (found != last.end()) {
            const Transfer& other = plan_.transfers[found->second];
            if (previous[t.link] != found->second || other.operation != t.operation ||
                other.iteration != t.iteration || other.stage != t.stage) {
                report(at("transfers", x) + "message: its parts are apart or differ in kind");
            }
        }
        last[{t.link, t.message}] = x;
        previous[t.link] = x;
    }
}

void Checker::check_caps() {
    const Prediction& p = plan_.predicted;
    std::uint32_t delay = 0;
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::uint32_t> merged;
    std::uint32_t merge = 1;
    for (const Delivery& d : plan_.deliveries) {
        delay = std::max(delay, d.delay());
        auto& sum = merged[{d.iteration, d.bucket, d.begin}];
        sum += d.generation.count;
        merge = std::max(merge, sum);
    }
    if (delay > options_.max_delay) {
        report("deliveries: delay of " + std::to_string(delay) + " iterations, allowed " +
               std::to_string(options_.max_delay));
    }
    if (merge > options_.max_merge) {
        report("deliveries: " + std::to_string(merge) + " iterations merged, allowed " +
               std::to_string(options_.max_merge));
    }
    if (plan_.period > options_.max_period) {
        report("period: longer than allowed");
    }
    if (p.max_delay != delay || p.max_merge != merge) {
        report("predicted: max_delay or max_merge is not what the deliveries say");
    }
    if (!(std::abs(p.late - late_part(plan_)) <= 1e-9)) {
        report("predicted.late: not what the deliveries say");
    }
    if (!(p.progress > 0 && p.progress <= 1 + 1e-9)) {  // what it is depends on the prices
        report("predicted.progress: outside 0..1");
    }
}

void Checker::check_times() {
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
bool Checker::check_start(std::size_t x, double slack) {
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
double Checker::check_message_time(std::size_t x, double slack) {
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

void Checker::check_simulation(double slack) {
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

std::vector<std::string> check_plan(const Plan& plan, const Profile& profile, const Fabric& fabric,
                                    const Options& options) {
    return Checker(plan, profile, fabric, options).run();
}

}  // namespace deft::planner
