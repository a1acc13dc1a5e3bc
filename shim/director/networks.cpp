// SPDX-License-Identifier: Apache-2.0
// Lanes over networks beside the job's own (DEFT_LANES): the leader has them made and measured
// once, before the first plan, in a staging that has no plan.
#include "shim/cuda/event_pool.h"
#include "shim/director/director.h"
#include "shim/director/settings.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// A network that NCCL does not know fails every time; a link that is just down may come back.
constexpr std::uint32_t kTries = 2;
constexpr std::int64_t kRetry = 1'000'000'000;
constexpr int kFirstNccl = 21700;  // that lets a communicator name its network

}  // namespace

bool Director::wants_networks() const {
    if (networks_off_ || !networks_.empty() || Settings::process().networks.empty()) {
        return false;
    }
    if (nccl_.version < kFirstNccl) {
        DEFT_WARN_ONCE(
            "DEFT_LANES has no effect: this NCCL cannot choose a communicator's "
            "network; it needs 2.17");
        return false;
    }
    return true;
}

// All ranks have them. The leader's figures count; an all-reduce takes as long on every rank.
void Director::networks_measured() {
    const Settings settings = Settings::process();
    for (std::size_t i = 0; i < speeds_.size() && i <= settings.networks.size(); ++i) {
        planner::Link link;
        link.name = i == 0 ? "own" : settings.networks[i - 1];
        link.cost.alpha = speeds_[i].start;
        link.cost.beta = speeds_[i].per_byte;
        link.source = "measured";
        DEFT_INFO("lane %s: %.3f GB/s, starts within %.0f us", link.name.c_str(),
                  1e-9 / link.cost.beta, link.cost.alpha * 1e6);
        networks_.push_back(std::move(link));
    }
    networks_only_ = false;
    networks_off_ = networks_.size() < 2;
    planned_signature_ = 0;  // now the plan
    enter(Course::Watching);
}

// Plans are made for the job's own network if the others cannot be had.
void Director::networks_refused(const Problem& problem) {
    networks_only_ = false;
    planned_signature_ = 0;
    retry_at_ns_ = cuda::host_now() + kRetry;
    enter(Course::Watching);
    if (problem.may_pass && ++network_tries_ < kTries) {
        return;
    }
    networks_off_ = true;
    DEFT_WARN("DEFT_LANES: %s; the job's own network is used alone", problem.why.c_str());
}

}  // namespace deft::director
