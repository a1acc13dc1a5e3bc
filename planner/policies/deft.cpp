// SPDX-License-Identifier: Apache-2.0
// Policy `deft`: Meng and Sun, DeFT (arXiv 2503.16815; Future Generation Computer Systems 175,
// 108103). The whole forward and the whole backward of an iteration are one knapsack per link each.
// The current queue holds the buckets of the oldest generation not yet reduced, the future queue
// accumulates (merges) the gradients made since. When the current queue is empty the generation is
// complete: the next update uses it, and the future queue becomes current. A bucket is cut so that
// it fits the smaller window. The update frequency follows: k = CR / sum(1/mu) iterations each.
// Deviations: the internals are reconstructed from the abstract (docs/planner.md). Of the authors'
// code the scheduler's executor is public (github meng980626/DeFT, reducer.cpp); its solver is not.
// There, as here, two queues take turns when the current one is empty, merged gradients are summed
// and updates in between get zeros, at the end of a backward. It differs in three things.
//  - It takes a fixed number of buckets per stage, given from outside; here knapsacks decide.
//  - What is left of a backward once the current queue is empty goes to the future queue, with the
//    gradients that this backward makes, at regular intervals. Here it goes to the generation
//    behind, without them: such transfers need not wait for backward, so the window holds no
//    bubble, and updates are more frequent.
//  - It drives one process group; the second link is not in what is public.
// So a gradient is never sent in the backward that makes it, and updates lag by one iteration at
// least. Caps on delay and merging are ours: the knapsacks grow until they hold, and where that
// merges more, a generation waits for the backward that starts it (Queues::reset). The repeating
// period is found by running the queues until they repeat. A piece is never cut so small that its
// start-up outweighs it, and a plan whose iterations are slower than those of the job as it is is
// not returned. Iteration time is the measure, as in the paper: a late plan that is a little faster
// by it may take longer to the same loss (progress.h). The verdict tells, and `best` chooses by it.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/solver/packing.h"

namespace deft::planner {
namespace {

// A piece moves bytes for at least this many times as long as it starts up.
constexpr double kStartups = 4;

struct Piece {
    std::uint32_t bucket = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    double value = 0;
    std::vector<double> cost;  // by link
};

struct Sent {
    std::uint32_t piece;
    std::uint32_t link;
    std::int64_t cycle;
    Stage stage;
    std::int64_t first, count;
};

struct Update {
    std::int64_t cycle;  // whose update gets it
    std::int64_t first, count;
};

class Queues {
public:
    Queues(const Profile& profile, const Fabric& fabric, const Options& options)
        : profile_(profile), fabric_(fabric), options_(options) {
        cut();
    }

    // Transfers and updates of the periodic part; false if no period within the limit was found or
    // an update leaves the caps.
    bool run();
    Plan plan() const;
    // As much was packed as Options::effort allows.
    bool exhausted() const { return packed_ >= options_.effort; }
    // Empty again, to run with options that have changed since. Patient: a generation starts after
    // a backward only, with that backward's gradients in it, and not in the window in which the one
    // before it ended: it is younger when it arrives, for a link that rests meanwhile.
    void reset(bool patient);
    // Share of the windows that one generation an iteration would fill, links together.
    double load() const;

private:
    void cut();
    void stage(std::int64_t cycle, Stage stage, double window);
    void pack(std::int64_t cycle, Stage stage);
    void end_current(std::int64_t update);
    void begin_current(std::int64_t first, std::int64_t count) {
        current_.assign(pieces_.size(), true);
        left_ = pieces_.size();
        first_ = first;
        count_ = count;
    }

    const Profile& profile_;
    const Fabric& fabric_;
    const Options& options_;
    std::vector<Piece> pieces_;
    std::vector<bool> current_;
    std::size_t left_ = 0;
    std::int64_t first_ = 0, count_ = 0;                // current generation; count 0: none
    std::int64_t future_first_ = 0, future_count_ = 0;  // accumulated
    std::int64_t merged_ = 0;                           // iterations in the newest update
    bool capped_ = false;                               // an update left the caps
    bool patient_ = false;
    std::vector<Sent> sent_;
    std::vector<Update> updates_;
    PackingSolver solver_;
    PackingProblem problem_;            // of one window, and which pieces it is about
    std::vector<std::uint32_t> items_;  // (kept between windows: no allocation)
    std::uint64_t packed_ = 0;
    std::int64_t from_ = 0, period_ = 0;
};

void Queues::cut() {
    const double window =
        std::min(1.0, options_.capacity_factor) * std::min(profile_.forward, profile_.backward);
    for (std::uint32_t i = 0; i < profile_.size(); ++i) {
        const std::uint64_t bytes = profile_.buckets[i].bytes;
        const double cost = fabric_.links[0].seconds(static_cast<double>(bytes));
        double count = 1;
        if (options_.allow_split && window > 0 && cost > window * (1 + 1e-9)) {
            const Link& link = fabric_.links[0];
            const double longest =
                std::max({link.bytes_within(window), static_cast<double>(options_.least_piece),
                          kStartups * link.latency() * std::min(link.best_rate(), 1e15)});
            count = std::ceil(static_cast<double>(bytes) / longest - 1e-9);
        }
        const auto at = cuts(bytes, static_cast<std::uint64_t>(count), options_.grain);
        for (std::size_t k = 0; k + 1 < at.size(); ++k) {
            Piece piece{i, at[k], at[k + 1], 0, {}};
            const double size = static_cast<double>(piece.end - piece.begin);
            for (const Link& link : fabric_.links) {
                piece.cost.push_back(link.seconds(size));
            }
            piece.value = piece.cost[0];
            pieces_.push_back(std::move(piece));
        }
    }
    // Largest first, as the solver wants them: it need not sort again in every stage.
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](const Piece& a, const Piece& b) { return a.value > b.value; });
}

void Queues::stage(std::int64_t cycle, Stage stage, double window) {
    problem_.links = fabric_.links.size();
    problem_.capacity.assign(problem_.links, window * options_.capacity_factor * (1 + 1e-9));
    for (;;) {
        if (count_ == 0 && future_count_ > 0 && !(patient_ && stage == Stage::Backward)) {
            begin_current(future_first_, future_count_);
            future_count_ = 0;
        }
        if (count_ == 0) {
            return;
        }
        pack(cycle, stage);
        if (left_ != 0) {
            return;
        }
        end_current(stage == Stage::Backward ? cycle : cycle + 1);
        if (future_count_ == 0) {
            return;
        }
    }
}

// Sends what of the current generation fits into what is left of the window.
void Queues::pack(std::int64_t cycle, Stage stage) {
    items_.clear();
    problem_.value.clear();
    problem_.cost.clear();
    for (std::uint32_t p = 0; p < pieces_.size(); ++p) {
        if (current_[p]) {
            items_.push_back(p);
            problem_.value.push_back(pieces_[p].value);
            problem_.cost.insert(problem_.cost.end(), pieces_[p].cost.begin(),
                                 pieces_[p].cost.end());
        }
    }
    const Packing& packing = solver_.greedy(problem_);
    packed_ += problem_.cost.size();
    for (std::size_t k = 0; k < items_.size(); ++k) {
        if (packing.link[k] == Packing::kUnsent) {
            continue;
        }
        const auto link = static_cast<std::uint32_t>(packing.link[k]);
        sent_.push_back({items_[k], link, cycle, stage, first_, count_});
        current_[items_[k]] = false;
        problem_.capacity[link] -= pieces_[items_[k]].cost[link];
        --left_;
    }
}

// Forward of cycle t runs after its update: what it completes is for the next one.
void Queues::end_current(std::int64_t update) {
    merged_ = !updates_.empty() && updates_.back().cycle == update ? merged_ + count_ : count_;
    if (update - (first_ + count_ - 1) > std::int64_t{options_.max_delay} ||
        merged_ > std::int64_t{options_.max_merge}) {
        capped_ = true;
    }
    updates_.push_back({update, first_, count_});
    count_ = 0;
}

bool Queues::run() {
    // State after a backward: what is left of the current generation and how old everything is.
    std::map<std::tuple<std::vector<bool>, std::int64_t, std::int64_t, std::int64_t, std::int64_t>,
             std::int64_t>
        seen;
    const std::int64_t limit = 4 * std::int64_t{options_.max_period} + 64;
    for (std::int64_t t = 0; t < limit && !exhausted(); ++t) {
        stage(t, Stage::Backward, profile_.backward);
        // The queues start empty and fill: what they cannot do now they cannot do later.
        if (capped_) {
            return false;
        }
        if (future_count_ == 0) {
            future_first_ = t;
        }
        ++future_count_;  // this backward's gradients
        const auto state =
            std::tuple(count_ == 0 ? std::vector<bool>() : current_, count_,
                       count_ == 0 ? 0 : t - first_, future_count_, t - future_first_);
        const auto [found, added] = seen.emplace(state, t);
        if (!added) {
            from_ = found->second + 1;
            period_ = t + 1 - from_;
            return period_ <= std::int64_t{options_.max_period};
        }
        stage(t, Stage::Forward, profile_.forward);
        // Nothing is ever sent: the windows hold no piece at all.
        if (t == limit / 2 && updates_.empty()) {
            return false;
        }
    }
    return false;
}

void Queues::reset(bool patient) {
    patient_ = patient;
    left_ = 0;
    first_ = count_ = future_first_ = future_count_ = merged_ = from_ = period_ = 0;
    capped_ = false;
    sent_.clear();
    updates_.clear();
}

double Queues::load() const {
    double speeds = 0;
    double total = 0;
    for (std::size_t j = 0; j < fabric_.links.size(); ++j) {
        double reference = 0;
        double here = 0;
        for (const Piece& piece : pieces_) {
            reference += piece.cost[0];
            here += piece.cost[j];
        }
        speeds += reference / here;
        total = reference;
    }
    const double share = total / (speeds * profile_.compute());
    return std::isfinite(share) ? share : 0;  // nothing to send, or no time at all
}

Plan Queues::plan() const {
    PlanBuilder builder("deft", Barrier::Update, static_cast<std::uint32_t>(period_));
    // A forward belongs to the cycle whose backward came before it; the state was taken between
    // the two, so the period's forwards start one cycle earlier. Take everything modulo the period.
    const auto relative = [&](std::int64_t cycle) { return cycle - from_; };
    std::vector<Sent> sent;
    for (const Sent& s : sent_) {
        const std::int64_t shifted = s.stage == Stage::Forward ? s.cycle + 1 : s.cycle;
        if (shifted >= from_ && shifted < from_ + period_) {
            sent.push_back(s);
        }
    }
    const auto wrap = [&](std::int64_t cycle) {  // periods to add so that it falls into the period
        return cycle < from_ ? period_ : 0;
    };
    for (const Sent& s : sent) {
        const Piece& piece = pieces_[s.piece];
        const std::int64_t add = wrap(s.cycle);
        Transfer& t = builder.add(piece.bucket, piece.begin, piece.end, s.link);
        t.iteration = static_cast<std::uint32_t>(relative(s.cycle + add));
        t.stage = s.stage;
        t.generation = {static_cast<std::int32_t>(relative(s.first + add)),
                        static_cast<std::uint32_t>(s.count)};
    }
    for (const Update& u : updates_) {
        if (u.cycle < from_ || u.cycle >= from_ + period_) {
            continue;
        }
        for (const Piece& piece : pieces_) {
            builder.deliver(static_cast<std::uint32_t>(relative(u.cycle)), piece.bucket,
                            piece.begin, piece.end,
                            {static_cast<std::int32_t>(relative(u.first)),
                             static_cast<std::uint32_t>(u.count)});
        }
    }
    return builder.finish(profile_, fabric_, options_);
}

// The tightening loop for the caps: larger knapsacks accept bubbles, and in the limit every
// generation fits: one update per iteration, one iteration late.
Plan within_caps(const Profile& profile, const Fabric& fabric, const Options& options) {
    Options widened = options;
    Queues queues(profile, fabric, widened);
    // A generation has max_delay iterations to travel in and stands for max_merge of them.
    const double least =
        std::max(options.capacity_factor,
                 queues.load() / std::min(options.max_delay, std::max(1U, options.max_merge)));
    const auto at = [&](int step, bool patient) {
        queues.reset(patient);
        widened.capacity_factor = least * std::pow(1.05, step);
        return queues.run();
    };
    if (at(0, false)) {
        return queues.plan();
    }
    // The least step that works: patient ones in turn, where generations may merge, then below
    // that the others by halving. With the last everything fits, as with none of the steps
    // tried before the effort is used up.
    constexpr int kSteps = 200;
    constexpr int kPatientSteps = 20;
    int works = kSteps;
    bool patient = false;
    const bool merges = options.max_delay > 1 && options.max_merge > 1;
    for (int step = 0; merges && !patient && step < kPatientSteps && !queues.exhausted(); ++step) {
        if (at(step, true)) {
            works = step;
            patient = true;
        }
    }
    for (int fails = 0; works - fails > 1 && !queues.exhausted();) {
        const int middle = (works + fails) / 2;
        if (at(middle, false)) {
            works = middle;
            patient = false;
        } else {
            fails = middle;
        }
    }
    widened.effort = UINT64_MAX;
    return at(works, patient) ? queues.plan() : Plan();
}

}  // namespace

Plan plan_deft(const Profile& profile, const Fabric& fabric, const Options& options) {
    // "No delay" is not DeFT: then the job stays as it is.
    Plan plan = options.max_delay > 0 ? within_caps(profile, fabric, options) : Plan();
    Plan as_is = plan_none(profile, fabric, options);
    as_is.policy = "deft";
    if (!options.predict) {  // the caller compares
        return plan.transfers.empty() ? as_is : plan;
    }
    const auto offer = [&plan](Plan other) {
        const bool none = plan.transfers.empty();
        if (none || other.predicted.iteration < plan.predicted.iteration * (1 - 1e-9)) {
            plan = std::move(other);
        }
    };
    // Where start-ups count, whole buckets that overflow their windows may be faster than pieces
    // that fit.
    if (plan.transfers.size() > profile.size() * plan.period) {
        Options whole = options;
        whole.allow_split = false;
        if (Plan other = within_caps(profile, fabric, whole); !other.transfers.empty()) {
            offer(std::move(other));
        }
    }
    offer(std::move(as_is));
    return plan;
}

}  // namespace deft::planner
