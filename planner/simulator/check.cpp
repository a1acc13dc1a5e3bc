// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "base/json.h"
#include "planner/simulator/check_times.h"
#include "planner/simulator/evaluate.h"
#include "planner/simulator/problems.h"

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
        return problems_.empty() ? check_times(plan_, profile_, fabric_) : problems_.take();
    }

private:
    void report(std::string what) { problems_.report(std::move(what)); }

    // What a transfer contributes to one delivery.
    struct Part {
        std::uint64_t begin, end;
        std::int64_t cycle;
        Stage stage;
        std::size_t order;  // its index among the transfers, too
    };
    static constexpr std::size_t kNone = ~std::size_t{0};
    using Feeding = std::array<std::vector<Part>, 3>;  // by operation

    void check_form();
    void check_inputs();
    void check_form(std::size_t x, const Transfer& t);
    template <class Entry>
    void check_form(const Entry& entry, const std::string& where, const char* too_early);
    void check_deliveries();
    void check_coverage();
    Feeding feeding_of(const Delivery& d, const std::vector<std::size_t>& among) const;
    static std::size_t cut_by(const Delivery& d, const Feeding& feeding);
    static bool covers_once(const Delivery& d, Feeding& feeding);
    void check_order(const Delivery& d, const Feeding& feeding);
    void check_messages();
    std::uint32_t most_merged() const;
    void check_caps();
    void check_counts(const Prediction& said);

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    const Options& options_;
    Problems problems_;
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
        if (const std::size_t x = cut_by(d, feeding); x != kNone) {
            report(at("deliveries", i) + "begins or ends inside transfers[" + std::to_string(x) +
                   "], which only one delivery may receive, as a whole");
            used[x] = 1;  // by another part of it, perhaps: said once
            continue;
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

// A transfer that carries bytes of this delivery and others as well.
std::size_t Checker::cut_by(const Delivery& d, const Feeding& feeding) {
    for (const std::vector<Part>& list : feeding) {
        for (const Part& part : list) {
            if (part.begin < d.begin || part.end > d.end) {
                return part.order;
            }
        }
    }
    return kNone;
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

// Most iterations that the update of one iteration sums of any byte, however deliveries are cut.
std::uint32_t Checker::most_merged() const {
    std::map<std::tuple<std::uint32_t, std::uint32_t>, std::map<std::uint64_t, std::int64_t>> edges;
    for (const Delivery& d : plan_.deliveries) {
        auto& of_bucket = edges[{d.iteration, d.bucket}];
        of_bucket[d.begin] += d.generation.count;
        of_bucket[d.end] -= d.generation.count;
    }
    std::int64_t most = 1;
    for (const auto& [place, of_bucket] : edges) {
        std::int64_t merged = 0;
        for (const auto& [byte, change] : of_bucket) {
            merged += change;
            most = std::max(most, merged);
        }
    }
    return static_cast<std::uint32_t>(most);
}

void Checker::check_caps() {
    Plan sorted = plan_;
    arrange(sorted, profile_, fabric_);
    const Prediction& said = sorted.predicted;
    if (said.max_delay > options_.max_delay) {
        report("deliveries: delay of " + std::to_string(said.max_delay) + " iterations, allowed " +
               std::to_string(options_.max_delay));
    }
    const std::uint32_t merged = std::max(said.max_merge, most_merged());
    if (merged > options_.max_merge) {
        report("deliveries: " + std::to_string(merged) + " iterations merged, allowed " +
               std::to_string(options_.max_merge));
    }
    if (plan_.period > options_.max_period) {
        report("period: longer than allowed");
    }
    check_counts(said);
}

// What the plan states of its own deliveries: a job counts its updates and prices its lateness by
// these figures.
void Checker::check_counts(const Prediction& said) {
    const Prediction& p = plan_.predicted;
    const auto same = [&](const char* field, double stated, double counted) {
        if (!(std::abs(stated - counted) <= 1e-9 * std::max(1.0, counted))) {  // not a number: no
            report(std::string("predicted.") + field + ": " + Json::number(stated).dump() +
                   " stated, the deliveries say " + Json::number(counted).dump());
        }
    };
    same("updates_per_iteration", p.updates, said.updates);
    same("max_delay", p.max_delay, said.max_delay);
    same("max_age", p.max_age, said.max_age);
    same("max_merge", p.max_merge, said.max_merge);
    same("mean_age", p.mean_age, said.mean_age);
    same("late", p.late, said.late);
    if (!(p.progress > 0 && p.progress <= 1 + 1e-9)) {  // what it is depends on the prices
        report("predicted.progress: outside 0..1");
    }
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan, const Profile& profile, const Fabric& fabric,
                                    const Options& options) {
    return Checker(plan, profile, fabric, options).run();
}

}  // namespace deft::planner
