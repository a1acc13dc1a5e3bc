// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/planner/policy_ratios.h"

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"
#include "planner/solver/closed_forms.h"
#include "planner/solver/packing.h"
#include "tests/unit/planner/brute_force.h"
#include "tests/unit/planner/brute_force_order.h"
#include "tests/unit/planner/brute_force_periods.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner::testing {
namespace {

// Start-ups from next to nothing to as long as a bucket's bytes take, links from idle to
// overloaded.
Fabric one_link_for(std::mt19937_64& random, const Profile& profile) {
    const double coverage = uniform(random, 0.4, 2.5);
    const double bytes = static_cast<double>(profile.bytes());
    const double share = uniform(random, 0, 0.5);  // of the time that goes into start-ups
    const double seconds = coverage * profile.compute();
    return one_link(bytes / (seconds * (1 - share)),
                    seconds * share / static_cast<double>(profile.size()));
}

Fabric links_for(std::mt19937_64& random, const Profile& profile, std::uint32_t links) {
    Fabric fabric;
    const double coverage = uniform(random, 0.8, 3);
    const double rate = static_cast<double>(profile.bytes()) / (coverage * profile.compute());
    for (std::uint32_t j = 0; j < links; ++j) {
        fabric.links.push_back(line("nic" + std::to_string(j),
                                    rate / (j == 0 ? 1 : uniform(random, 1, 4)),
                                    uniform(random, 0, 3e-4)));
    }
    return fabric;
}

double seconds(const char* policy, const Profile& profile, const Fabric& fabric,
               const Options& options = {}) {
    return make_plan(policy, profile, fabric, options).predicted.iteration;
}

void one_link_policies(std::vector<PolicyRatio>& all) {
    PolicyRatio mg{"mg-wfbp", "every grouping of neighbours"};
    PolicyRatio phase{"us-byte", "every grouping of neighbours, all sent after backward"};
    PolicyRatio us{"us-byte", "best order, start-ups as nothing"};
    PolicyRatio layers{"wfbp", "best order, start-ups as nothing"};
    PolicyRatio byte{"bytescheduler", "best order, start-ups as nothing"};
    PolicyRatio ideal{"bytescheduler, ideal", "best order (no start-ups)"};
    PolicyRatio dear{"dear", "every grouping of neighbours"};
    PolicyRatio best{"best, layers wait", "the best of all of these"};
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            random_profile(random, 3 + static_cast<std::uint32_t>(random() % 8));
        const Fabric fabric = one_link_for(random, profile);
        const Link& link = fabric.links[0];
        Options layer;
        layer.barrier = Barrier::Layer;
        const double grouped = best_fused_wfbp(profile, link);
        const double scattered = best_fused_dear(profile, link);
        mg.add(seconds("mg-wfbp", profile, fabric) / grouped);
        dear.add(seconds("dear", profile, fabric) / scattered);
        const Profile after = profile.without_overlap();
        phase.add(seconds("us-byte", after, fabric) / best_fused_forward(after, link));
        Fabric free = fabric;
        free.links[0].cost.alpha = 0;
        const double order = time_optimal(profile, bucket_costs(profile, free.links[0]));
        us.add(seconds("us-byte", profile, fabric) / order);
        layers.add(seconds("wfbp", profile, fabric) / order);
        byte.add(seconds("bytescheduler", profile, fabric) / order);
        Options whole;
        whole.partition_bytes = 0;
        whole.grain = 1;
        ideal.add(seconds("bytescheduler", profile, free, whole) / order);
        Options now = layer;
        now.max_delay = 0;
        now.max_merge = 1;
        now.noise = 0;
        best.add(seconds("best", profile, fabric, now) /
                 std::min({grouped, scattered, seconds("us-byte", profile, fabric),
                           seconds("bytescheduler", profile, fabric)}));
    }
    all.insert(all.end(), {mg, phase, us, layers, byte, ideal, dear, best});
}

// Partitions halved down to the least piece, as whoever tunes them would; the next is decided on
// when the link is free.
double tuned_bytescheduler(const Profile& profile, const Fabric& fabric) {
    Options options;
    options.credit_bytes = 1;
    double best = INFINITY;
    for (options.partition_bytes = profile.bytes(); options.partition_bytes >= options.least_piece;
         options.partition_bytes /= 2) {
        best = std::min(best, seconds("bytescheduler", profile, fabric, options));
    }
    return best;
}

// Small enough for every order of messages, start-ups counted.
void ordered_policies(std::vector<PolicyRatio>& all) {
    constexpr std::uint32_t kParts = 3;
    const std::string reference = "every order of messages of thirds of buckets, with start-ups";
    PolicyRatio us{"us-byte", reference};
    PolicyRatio byte{"bytescheduler", reference};
    PolicyRatio tuned{"bytescheduler, tuned", reference};
    PolicyRatio layers{"wfbp", reference};
    PolicyRatio best{"best, layers wait", reference};
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(6000 + seed);
        const Profile profile =
            random_profile(random, 3 + static_cast<std::uint32_t>(random() % 2));
        const Fabric fabric = one_link_for(random, profile);
        const double optimum = EveryOrder(profile, fabric.links[0], kParts).seconds();
        us.add(seconds("us-byte", profile, fabric) / optimum);
        byte.add(seconds("bytescheduler", profile, fabric) / optimum);
        tuned.add(tuned_bytescheduler(profile, fabric) / optimum);
        layers.add(seconds("wfbp", profile, fabric) / optimum);
        Options now;
        now.barrier = Barrier::Layer;
        now.max_delay = 0;
        now.max_merge = 1;
        now.noise = 0;
        now.halves = false;
        best.add(seconds("best", profile, fabric, now) / optimum);
    }
    all.insert(all.end(), {us, byte, tuned, layers, best});
}

void many_link_policies(std::vector<PolicyRatio>& all) {
    PolicyRatio exact{"edf", "every assignment of whole buckets"};
    PolicyRatio first{"edf", "first-fit decreasing"};
    PolicyRatio decreasing{"first-fit decreasing", "every assignment of whole buckets"};
    PolicyRatio best{"best", "every assignment of whole buckets"};
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
        std::mt19937_64 random(1000 + seed);
        const std::uint32_t links = 2 + static_cast<std::uint32_t>(random() % 3);
        const std::uint32_t buckets = 4 + static_cast<std::uint32_t>(random() % 5);
        const Profile profile = random_profile(random, buckets);
        const Fabric fabric = links_for(random, profile, links);
        const double optimum = best_whole_buckets(profile, fabric);
        const double ffd = first_fit_decreasing(profile, fabric);
        const double mine = seconds("edf", profile, fabric);
        exact.add(mine / optimum);
        first.add(mine / ffd);
        decreasing.add(ffd / optimum);
        Options now;
        now.max_delay = 0;
        now.max_merge = 1;
        now.noise = 0;
        best.add(seconds("best", profile, fabric, now) / optimum);
    }
    all.insert(all.end(), {exact, first, decreasing, best});
}

// The paper counts machines over all cases together.
void fewest_link_policy(std::vector<PolicyRatio>& all) {
    PolicyRatio each{"fewest-links", "least number of links, each case"};
    PolicyRatio sum{"fewest-links", "least number of links, summed"};  // one figure
    double mine = 0;
    double least = 0;
    for (std::uint64_t seed = 0; seed < 80; ++seed) {
        std::mt19937_64 random(2000 + seed);
        const Profile profile =
            random_profile(random, 5 + static_cast<std::uint32_t>(random() % 3));
        const Fabric fabric = links_for(random, profile, 5);
        Options options;
        options.target_seconds = best_whole_buckets(profile, fabric) * uniform(random, 1.0, 1.3);
        const Plan plan = make_plan("fewest-links", profile, fabric, options);
        std::uint32_t used = 0;
        for (const Transfer& t : plan.transfers) {
            used |= 1U << t.link;
        }
        const bool reached = plan.predicted.iteration <= options.target_seconds * (1 + 1e-6);
        const auto count = reached ? static_cast<double>(__builtin_popcount(used)) : INFINITY;
        const auto exact =
            static_cast<double>(fewest_links(profile, fabric, options.target_seconds));
        each.add(count / exact);
        mine += count;
        least += exact;
    }
    sum.add(mine / least);
    all.insert(all.end(), {each, sum});
}

// Updates per iteration in the long run, without caps; no bucket needs cutting.
void queue_policy(std::vector<PolicyRatio>& all) {
    PolicyRatio ratio{"deft", "its queues with every packing (updates: theirs over ours)"};
    for (std::uint64_t seed = 0; ratio.cases < 100; ++seed) {
        std::mt19937_64 random(4000 + seed);
        const Profile profile =
            random_profile(random, 4 + static_cast<std::uint32_t>(random() % 3));
        Fabric fabric;
        const double coverage = uniform(random, 1.1, 3);
        const double rate = static_cast<double>(profile.bytes()) / (coverage * profile.compute());
        fabric.links.push_back(line("nic", rate));
        if (random() % 2 == 0) {
            fabric.links.push_back(line("nic1", rate / uniform(random, 1, 2)));
        }
        const std::vector<double> costs = bucket_costs(profile, fabric.links[0]);
        if (*std::max_element(costs.begin(), costs.end()) >
            std::min(profile.forward, profile.backward)) {
            continue;
        }
        Options options;
        options.max_delay = options.max_merge = 1000;
        options.max_period = 1000;
        const Plan plan = make_plan("deft", profile, fabric, options);
        if (plan.predicted.max_delay == 0) {
            continue;  // the job as it is
        }
        ratio.add(ExactQueues(profile, fabric).updates() / plan.predicted.updates);
    }
    all.push_back(ratio);
}

// The filter hands pieces to turns by their number alone.
void filter_policy(std::vector<PolicyRatio>& all) {
    PolicyRatio ratio{"covap", "every way to hand its pieces to turns"};
    for (std::uint64_t seed = 0; ratio.cases < 100; ++seed) {
        std::mt19937_64 random(5000 + seed);
        const Profile profile =
            random_profile(random, 4 + static_cast<std::uint32_t>(random() % 4));
        const double rate =
            static_cast<double>(profile.bytes()) / (uniform(random, 1.1, 2.9) * profile.compute());
        const Fabric fabric = one_link(rate, uniform(random, 0, 3e-4));
        Options options;
        options.max_merge = 64;
        const Plan plan = make_plan("covap", profile, fabric, options);
        std::vector<TimedPiece> pieces;
        for (std::uint32_t i = 0; i < profile.size(); ++i) {
            for (const Transfer& t : plan.transfers) {
                if (t.bucket == i) {
                    pieces.push_back({profile.buckets[i].ready,
                                      fabric.links[0].seconds(static_cast<double>(t.bytes()))});
                }
            }
        }
        if (pieces.size() > 10) {
            continue;
        }
        ratio.add(plan.predicted.iteration / best_turns(profile, pieces, plan.period));
    }
    all.push_back(ratio);
}

// Value packed into one window, exhaustive over greedy: how much more would fit.
void knapsacks(std::vector<PolicyRatio>& all) {
    PolicyRatio ratio{"deft, one knapsack", "every packing (value: theirs over ours)"};
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(3000 + seed);
        PackingProblem problem;
        problem.links = 1 + random() % 2;
        const std::size_t items = 4 + random() % 6;
        double total = 0;
        for (std::size_t i = 0; i < items; ++i) {
            problem.value.push_back(uniform(random, 0.5e-3, 5e-3));
            total += problem.value.back();
        }
        for (std::size_t i = 0; i < items; ++i) {
            for (std::size_t j = 0; j < problem.links; ++j) {
                problem.cost.push_back(problem.value[i] * (j == 0 ? 1 : 1.65));
            }
        }
        problem.capacity.assign(problem.links, total / 1.3 / (problem.links == 1 ? 1 : 1.61));
        double best = 0;
        every_assignment(items, static_cast<std::uint32_t>(problem.links) + 1,
                         [&](const std::vector<std::uint32_t>& place) {
                             std::vector<double> room = problem.capacity;
                             double value = 0;
                             for (std::size_t i = 0; i < items; ++i) {
                                 if (place[i] < problem.links) {
                                     room[place[i]] -= problem.cost[i * problem.links + place[i]];
                                     value += problem.value[i];
                                 }
                             }
                             if (*std::min_element(room.begin(), room.end()) >= -1e-12) {
                                 best = std::max(best, value);
                             }
                         });
        PackingSolver solver;
        ratio.add(best / solver.greedy(problem).value);
    }
    all.push_back(ratio);
}

}  // namespace

void PolicyRatio::add(double ratio) {
    mean = (mean * static_cast<double>(cases) + ratio) / static_cast<double>(cases + 1);
    most = std::max(most, ratio);
    equal += ratio <= 1 + 1e-4 ? 1U : 0U;
    ++cases;
}

std::vector<PolicyRatio> policy_ratios() {
    std::vector<PolicyRatio> all;
    one_link_policies(all);
    ordered_policies(all);
    many_link_policies(all);
    fewest_link_policy(all);
    knapsacks(all);
    queue_policy(all);
    filter_policy(all);
    return all;
}

}  // namespace deft::planner::testing
