// SPDX-License-Identifier: Apache-2.0
// Exhaustive references for policies whose plans run over several iterations, written apart from
// the planner.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/model/plan.h"
#include "tests/unit/planner/brute_force.h"

namespace deft::planner::testing {

// Pieces with the time at which they exist, in the order in which they are sent.
struct TimedPiece {
    double ready = 0;
    double seconds = 0;
};

// Every piece goes out once in `turns` iterations; each update waits for what its iteration sends.
// Mean seconds per iteration of the best way to hand the pieces to the turns.
inline double best_turns(const Profile& profile, const std::vector<TimedPiece>& pieces,
                         std::uint32_t turns) {
    double best = INFINITY;
    std::vector<double> finish(turns);
    every_assignment(pieces.size(), turns, [&](const std::vector<std::uint32_t>& turn) {
        std::fill(finish.begin(), finish.end(), 0.0);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            double& at = finish[turn[i]];
            at = std::max(at, pieces[i].ready) + pieces[i].seconds;
        }
        double sum = 0;
        for (const double at : finish) {
            sum += profile.forward + std::max(at, profile.backward);
        }
        best = std::min(best, sum / turns);
    });
    return best;
}

// DeFT's two queues as deft.cpp describes them, with whole buckets and every packing tried in every
// window: updates per iteration in the long run.
class ExactQueues {
public:
    ExactQueues(const Profile& profile, const Fabric& fabric) : profile_(profile) {
        for (const Bucket& bucket : profile.buckets) {
            std::vector<double> cost;
            for (const Link& link : fabric.links) {
                cost.push_back(link.seconds(static_cast<double>(bucket.bytes)));
            }
            cost_.push_back(cost);
        }
    }

    double updates() {
        constexpr int kWarmUp = 100;
        constexpr int kIterations = 500;
        int counted = 0;
        for (int t = 0; t < kWarmUp + kIterations; ++t) {
            const int ended = window(profile_.backward) + carried_;
            future_ = true;
            carried_ = window(profile_.forward);
            counted += t >= kWarmUp && ended > 0 ? 1 : 0;
        }
        return static_cast<double>(counted) / kIterations;
    }

private:
    // Generations that end in it.
    int window(double capacity) {
        std::vector<double> room(cost_[0].size(), capacity * (1 + 1e-9));
        int ended = 0;
        for (;;) {
            if (left_.empty() && future_) {
                future_ = false;
                for (std::size_t i = 0; i < cost_.size(); ++i) {
                    left_.push_back(i);
                }
            }
            if (left_.empty()) {
                return ended;
            }
            pack(room);
            if (!left_.empty()) {
                return ended;
            }
            ++ended;
            if (!future_) {
                return ended;
            }
        }
    }

    void pack(std::vector<double>& room) {
        const auto links = static_cast<std::uint32_t>(room.size());
        double most = -1;
        std::vector<std::uint32_t> best;
        every_assignment(left_.size(), links + 1, [&](const std::vector<std::uint32_t>& place) {
            std::vector<double> rest = room;
            double value = 0;
            for (std::size_t k = 0; k < place.size(); ++k) {
                if (place[k] < links) {
                    rest[place[k]] -= cost_[left_[k]][place[k]];
                    value += cost_[left_[k]][0];
                }
            }
            if (value > most && *std::min_element(rest.begin(), rest.end()) >= 0) {
                most = value;
                best = place;
            }
        });
        std::vector<std::size_t> unsent;
        for (std::size_t k = 0; k < best.size(); ++k) {
            if (best[k] < links) {
                room[best[k]] -= cost_[left_[k]][best[k]];
            } else {
                unsent.push_back(left_[k]);
            }
        }
        left_ = unsent;
    }

    const Profile& profile_;
    std::vector<std::vector<double>> cost_;  // by bucket and link
    std::vector<std::size_t> left_;          // of the current generation
    bool future_ = false;                    // gradients wait behind it
    int carried_ = 0;                        // ended under forward: the next update gets them
};

}  // namespace deft::planner::testing
