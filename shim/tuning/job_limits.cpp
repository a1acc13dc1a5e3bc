// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/job_limits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace deft::tuning {
namespace {

std::atomic<bool> g_limited{false};

bool set(const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && *value != '\0';
}

}  // namespace

// NCCL has put what its files say into the environment by the time it makes a communicator.
const char* job_names_algorithm() noexcept {
    // Where the job's own tuner cannot be opened NCCL would turn to this library.
    const char* const tuner = std::getenv("NCCL_TUNER_PLUGIN");
    if (tuner != nullptr && *tuner != '\0' && std::strstr(tuner, "deft") == nullptr) {
        return "NCCL_TUNER_PLUGIN";
    }
    return set("NCCL_ALGO") ? "NCCL_ALGO" : set("NCCL_PROTO") ? "NCCL_PROTO" : nullptr;
}

bool job_limits_channels() noexcept {
    constexpr std::array kVariables = {"NCCL_MIN_CTAS",      "NCCL_MAX_CTAS",
                                       "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
                                       "NCCL_MIN_NRINGS",    "NCCL_MAX_NRINGS"};
    return g_limited.load(std::memory_order_relaxed) ||
           std::any_of(kVariables.begin(), kVariables.end(), set);
}

void note_limited_channels() noexcept {
    g_limited.store(true, std::memory_order_relaxed);
}

}  // namespace deft::tuning
