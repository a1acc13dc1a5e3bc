// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/assignment.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "planner/policies/builder.h"
#include "planner/policies/link_queue.h"
#include "planner/policies/policy.h"

namespace deft::planner {
namespace {

constexpr double kHair = 1 + 1e-12;  // rounding must not decide whether the optimum is feasible
// How closely the shortest length is searched for: where filling is quick, and where it is not.
constexpr double kExact = 1e-8;
constexpr double kNear = 1e-4;
constexpr std::size_t kFew = 64;       // buckets up to which all is tried
constexpr std::size_t kWalk = 200000;  // steps of simulation spent below what bisection found
constexpr double kBenchmark = 1e8;     // bytes at which links are commonly told apart

}  // namespace

Assignment::Assignment(const Profile& profile, const Fabric& fabric, Barrier barrier)
    : profile_(profile), n_(static_cast<std::uint32_t>(profile.size())), barrier_(barrier) {
    slack_.assign(n_, profile.forward);
    if (barrier == Barrier::Layer) {
        slack_ = profile.tails();
    }
    for (const Link& link : fabric.links) {
        costs_.push_back(bucket_costs(profile, link));
    }
    order_buckets(profile);
    order_links(profile, fabric);
}

void Assignment::order_buckets(const Profile& profile) {
    by_size_.resize(n_);
    std::iota(by_size_.begin(), by_size_.end(), 0U);
    std::stable_sort(by_size_.begin(), by_size_.end(), [&](std::uint32_t a, std::uint32_t b) {
        return profile.buckets[a].bytes > profile.buckets[b].bytes;
    });
    // The one needed first, of two alike the larger; with one deadline for all, first-fit
    // decreasing.
    Set by_deadline = by_size_;
    std::stable_sort(by_deadline.begin(), by_deadline.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return slack_[a] > slack_[b]; });
    // Of two of one size the one that exists later first: fewer places are in time for it. Where
    // all are of one size and have one deadline, this fills any length that can be filled.
    Set latest_first(n_);
    std::iota(latest_first.rbegin(), latest_first.rend(), 0U);
    std::stable_sort(latest_first.begin(), latest_first.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                         return profile.buckets[a].bytes > profile.buckets[b].bytes;
                     });
    orders_ = {by_deadline};
    if (latest_first != by_deadline) {
        orders_.push_back(latest_first);
    }
    if (by_size_ != by_deadline && n_ <= kFew) {
        orders_.push_back(by_size_);
    }
}

// Where the costs of two links cross, which of them is filled first decides: one is the faster for
// small buckets, the other for large ones.
void Assignment::order_links(const Profile& profile, const Fabric& fabric) {
    links_ = by_speed(fabric, static_cast<double>(profile.bytes()) / std::max(1U, n_));
    link_orders_ = {links_};
    const double smallest = static_cast<double>(profile.buckets[by_size_.back()].bytes);
    const double largest = static_cast<double>(profile.buckets[by_size_.front()].bytes);
    for (const double bytes : {smallest, largest, kBenchmark}) {
        Links links = by_speed(fabric, bytes);
        if (std::find(link_orders_.begin(), link_orders_.end(), links) == link_orders_.end()) {
            link_orders_.push_back(std::move(links));
        }
    }
}

// One deadline for all: first ready, first sent is as good as any order. Else, of those that exist,
// the one needed first.
double Assignment::link_length(std::uint32_t link, const Set& set,
                               std::vector<double>* starts) const {
    const std::vector<double>& cost = costs_[link];
    double now = 0;
    double length = 0;
    const auto send = [&](std::uint32_t i) {
        now = std::max(now, profile_.buckets[i].ready);
        if (starts != nullptr) {
            (*starts)[i] = now;
        }
        now += cost[i];
        length = std::max(length, now + slack_[i]);
    };
    if (barrier_ == Barrier::Update) {
        for (const std::uint32_t i : set) {
            send(i);
        }
        return length;
    }
    Set arrived;  // a heap, the one needed first on top
    const auto later = [&](std::uint32_t a, std::uint32_t b) {
        return slack_[a] != slack_[b] ? slack_[a] < slack_[b] : a > b;
    };
    for (std::size_t next = 0; next < set.size() || !arrived.empty();) {
        while (next < set.size() && (arrived.empty() || profile_.buckets[set[next]].ready <= now)) {
            now = std::max(now, arrived.empty() ? profile_.buckets[set[next]].ready : now);
            arrived.push_back(set[next++]);
            std::push_heap(arrived.begin(), arrived.end(), later);
        }
        std::pop_heap(arrived.begin(), arrived.end(), later);
        send(arrived.back());
        arrived.pop_back();
    }
    return length;
}

// The length of a link's part, infinite if it is longer than `length`.
double Assignment::length_in_time(std::uint32_t link, const Set& set, double length) const {
    if (barrier_ == Barrier::Layer) {
        // Most sets fail even if transfers could be interrupted: that is quickly seen.
        double rest = 0;
        for (std::size_t k = set.size(); k-- > 0;) {
            rest += costs_[link][set[k]];
            if (profile_.buckets[set[k]].ready + rest + slack_[set[k]] > length * kHair) {
                return INFINITY;
            }
        }
    }
    const double took = link_length(link, set, nullptr);
    return took <= length * kHair ? took : INFINITY;
}

bool Assignment::in_time(std::uint32_t link, const Set& set, double length) const {
    return std::isfinite(length_in_time(link, set, length));
}

// One link that is being filled.
class Assignment::Filling {
public:
    explicit Filling(const Assignment& all) : all_(all), queue_(all.n_) {}

    void begin(std::uint32_t link) {
        link_ = link;
        set_.clear();
        queue_.clear();
    }

    // The link's length with one bucket more; infinite, and the bucket is not taken, if that is
    // longer than `length`.
    double take(std::uint32_t i, double length) {
        if (all_.barrier_ == Barrier::Update) {
            queue_.add(i, all_.profile_.buckets[i].ready, all_.costs_[link_][i]);
            const double took = queue_.done() + all_.slack_[i];
            if (took <= length * kHair) {
                return took;
            }
            queue_.remove(i);
            return INFINITY;
        }
        const auto at = set_.insert(std::lower_bound(set_.begin(), set_.end(), i), i);
        const double took = all_.length_in_time(link_, set_, length);
        if (!std::isfinite(took)) {
            set_.erase(at);
        }
        return took;
    }

private:
    const Assignment& all_;
    std::uint32_t link_ = 0;
    Set set_;          // where deadlines differ
    LinkQueue queue_;  // where they do not
};

Assignment::LinkOf Assignment::fill(double length, const Set& order, const Links& links,
                                    double& longest) const {
    Set left = order;
    LinkOf link_of(n_, kNone);
    Set late;
    Filling filling(*this);
    longest = 0;
    for (const std::uint32_t j : links) {
        late.clear();
        filling.begin(j);
        for (const std::uint32_t i : left) {
            const double took = filling.take(i, length);
            if (std::isfinite(took)) {
                link_of[i] = j;
                longest = std::max(longest, took);
            } else {
                late.push_back(i);
            }
        }
        left.swap(late);
    }
    return left.empty() ? link_of : LinkOf();
}

std::vector<Assignment::Set> Assignment::sets_of(const LinkOf& link_of) const {
    std::vector<Set> sets(costs_.size());
    for (std::uint32_t i = 0; i < n_; ++i) {
        sets[link_of[i]].push_back(i);
    }
    return sets;
}

double Assignment::length(const LinkOf& link_of) const {
    if (link_of.size() != n_) {
        return INFINITY;
    }
    const std::vector<Set> sets = sets_of(link_of);
    double length = profile_.compute();
    for (std::uint32_t j = 0; j < sets.size(); ++j) {
        length = std::max(length, link_length(j, sets[j], nullptr));
    }
    return length;
}

std::vector<double> Assignment::starts(const LinkOf& link_of) const {
    std::vector<double> starts(n_, 0.0);
    const std::vector<Set> sets = sets_of(link_of);
    for (std::uint32_t j = 0; j < sets.size(); ++j) {
        link_length(j, sets[j], &starts);
    }
    return starts;
}

Assignment::LinkOf Assignment::shortest(double least) const {
    Found best;
    for (const Links& links : link_orders_) {
        for (const Set& order : orders_) {
            bisect(least, order, links, best);
            walk_down(least, order, links, best);
        }
    }
    LinkOf& link_of = best.link_of;
    while (!link_of.empty() && length(link_of) > least * (1 + kNear) && improve(link_of)) {
    }
    return std::move(link_of);
}

// At the lengths at which first-fit decreasing is commonly tried: what fits into a length need not
// fit into a longer one, so other lengths would find other assignments, and sometimes worse ones.
void Assignment::bisect(double least, const Set& order, const Links& links, Found& best) const {
    double low = profile_.compute();
    double mine = INFINITY;
    double reach = low;
    double longest = 0;
    const double near = barrier_ == Barrier::Update ? kExact : kNear;
    for (int i = 0; i < 100 && mine - low > near * low; ++i) {
        const LinkOf found = reach < least / kHair ? LinkOf() : fill(reach, order, links, longest);
        if (found.empty()) {
            low = reach;
        } else {
            mine = reach;
            const double took = length(found);
            if (took < best.length) {
                best = {found, took};
            }
        }
        reach = std::isfinite(mine) ? 0.5 * (low + mine) : reach * 1.5 + 1e-9;
    }
}

// Bisection misses lengths that fit below one that does not. Filling goes another way only where a
// set that was in time is so no longer: from one such length down to the next, none is missed. Of
// hundreds of buckets there are too many: the walk ends after so much work.
void Assignment::walk_down(double least, const Set& order, const Links& links, Found& best) const {
    constexpr double kBelow = 1 - 1e-9;
    // Of one filling, at most.
    const std::size_t each =
        barrier_ == Barrier::Update ? static_cast<std::size_t>(std::bit_width(n_)) : n_;
    const std::size_t steps = n_ * each * links.size();
    double reach = best.length * kBelow;
    for (std::size_t i = 0; i < kWalk / steps && reach >= least; ++i) {
        double longest = 0;
        const LinkOf found = fill(reach, order, links, longest);
        if (!found.empty()) {
            best = {found, length(found)};
            longest = best.length;
        }
        reach = std::min(reach, longest) * kBelow;
    }
}

// One bucket of the link that ends last moves to another link, or changes places with one there.
bool Assignment::improve(LinkOf& link_of) const {
    std::vector<Set> sets = sets_of(link_of);
    std::vector<double> lengths;
    for (std::uint32_t j = 0; j < sets.size(); ++j) {
        lengths.push_back(link_length(j, sets[j], nullptr));
    }
    const auto last = static_cast<std::uint32_t>(std::max_element(lengths.begin(), lengths.end()) -
                                                 lengths.begin());
    const double goal = lengths[last] * (1 - 1e-9);
    const auto with = [&](std::uint32_t link, std::uint32_t out, std::uint32_t in) {
        Set set = sets[link];
        if (out != kNone) {
            set.erase(std::lower_bound(set.begin(), set.end(), out));
        }
        if (in != kNone) {
            set.insert(std::lower_bound(set.begin(), set.end(), in), in);
        }
        return in_time(link, set, goal);
    };
    for (const std::uint32_t i : sets[last]) {
        for (const std::uint32_t j : links_) {
            if (j == last) {
                continue;
            }
            if (with(j, kNone, i) && with(last, i, kNone)) {
                link_of[i] = j;
                return true;
            }
            for (std::size_t k = 0; n_ <= kFew && k < sets[j].size(); ++k) {
                if (with(last, i, sets[j][k]) && with(j, sets[j][k], i)) {
                    link_of[i] = j;
                    link_of[sets[j][k]] = last;
                    return true;
                }
            }
        }
    }
    return false;
}

Assignment::LinkOf Assignment::search(double length, std::uint64_t effort) const {
    LinkOf link_of(n_, kNone);
    std::vector<Set> sets(costs_.size());
    return search_from(0, length, effort, sets, link_of) ? link_of : LinkOf();
}

bool Assignment::search_from(std::size_t depth, double length, std::uint64_t& effort,
                             std::vector<Set>& sets, LinkOf& link_of) const {
    if (depth == n_) {
        return true;
    }
    const std::uint32_t i = by_size_[depth];
    for (std::size_t at = 0; at < links_.size() && effort > 0; ++at) {
        const std::uint32_t j = links_[at];
        // Of links alike that are empty yet, one will do.
        const bool again = at > 0 && sets[j].empty() && sets[links_[at - 1]].empty() &&
                           costs_[j] == costs_[links_[at - 1]];
        if (again) {
            continue;
        }
        --effort;
        const auto place = std::lower_bound(sets[j].begin(), sets[j].end(), i) - sets[j].begin();
        sets[j].insert(sets[j].begin() + place, i);
        if (in_time(j, sets[j], length)) {
            link_of[i] = j;
            if (search_from(depth + 1, length, effort, sets, link_of)) {
                return true;
            }
        }
        sets[j].erase(sets[j].begin() + place);
    }
    return false;
}

Plan plan_assigned(const char* policy, const Assignment::LinkOf& link_of,
                   const Assignment& assignment, const Profile& profile, const Fabric& fabric,
                   const Options& options) {
    if (link_of.empty()) {
        // Never: one link and a long iteration always do. Then the job stays as it is.
        Plan plan = plan_none(profile, fabric, options);
        plan.policy = policy;
        return plan;
    }
    const std::vector<double> starts = assignment.starts(link_of);
    std::vector<std::uint32_t> order(profile.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return starts[a] < starts[b]; });
    PlanBuilder builder(policy, options.barrier);
    for (const std::uint32_t i : order) {
        builder.add(i, 0, profile.buckets[i].bytes, link_of[i]);
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
