// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>

namespace deft {

// What a job chooses for a communicator in its ncclConfig_t, as far as it concerns lanes too. Each
// is NCCL's "undefined" where the job leaves it to NCCL. Named as there.
struct ConfigChoices {
    static constexpr int kUndefined = INT_MIN;
    int cga_cluster_size = kUndefined;
    int min_ctas = kUndefined;
    int max_ctas = kUndefined;
    int traffic_class = kUndefined;
    int collnet_enable = kUndefined;
    int cta_policy = kUndefined;
    int nvls_ctas = kUndefined;

    bool operator==(const ConfigChoices&) const = default;
};

}  // namespace deft
