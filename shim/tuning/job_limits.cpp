// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/job_limits.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace deft::tuning {
namespace {

std::atomic<bool> g_limited{false};

// Null: it is not set, or empty.
const char* value_of(const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

bool set(const char* variable) {
    return value_of(variable) != nullptr;
}

// From 2.28 on a library of the job's may say what NCCL's variables are, to NCCL alone. Where none
// is named NCCL looks for one with this name.
const char* variables_library() {
    constexpr const char* kUnnamed = "libnccl-env.so";
    if (const char* const name = value_of("NCCL_ENV_PLUGIN")) {
        return ::strcasecmp(name, "none") != 0 ? "NCCL_ENV_PLUGIN" : nullptr;
    }
    void* const loaded = ::dlopen(kUnnamed, RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr) {
        return nullptr;
    }
    ::dlclose(loaded);
    return kUnnamed;
}

const char* named_algorithm() {
    // Where the job's own tuner cannot be opened NCCL would turn to this library.
    const char* const tuner = value_of("NCCL_TUNER_PLUGIN");
    if (tuner != nullptr && std::strstr(tuner, "deft") == nullptr) {
        return "NCCL_TUNER_PLUGIN";
    }
    if (const char* const library = variables_library()) {
        return library;
    }
    return set("NCCL_ALGO") ? "NCCL_ALGO" : set("NCCL_PROTO") ? "NCCL_PROTO" : nullptr;
}

}  // namespace

// NCCL has put what its files say into the environment by the time it has made a communicator.
JobLimits read_job_limits() noexcept {
    constexpr std::array kVariables = {"NCCL_MIN_CTAS",      "NCCL_MAX_CTAS",
                                       "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
                                       "NCCL_MIN_NRINGS",    "NCCL_MAX_NRINGS"};
    JobLimits limits;
    limits.names_algorithm = named_algorithm();
    limits.channels = std::any_of(kVariables.begin(), kVariables.end(), set);
    limits.other_network = !tunable_network(value_of("NCCL_NET"));
    return limits;
}

bool tunable_network(const char* name) noexcept {
    return name == nullptr || ::strcasecmp(name, "deft") == 0 || ::strcasecmp(name, "Socket") == 0;
}

bool configuration_limits_channels() noexcept {
    return g_limited.load(std::memory_order_relaxed);
}

void note_limited_channels() noexcept {
    g_limited.store(true, std::memory_order_relaxed);
}

}  // namespace deft::tuning
