// SPDX-License-Identifier: Apache-2.0
// What the job itself has said about how NCCL carries out its calls: that stands.
#pragma once

namespace deft::tuning {

// As of when a communicator is made. Pointers are to literals.
struct JobLimits {
    // NCCL_ALGO or NCCL_PROTO, if it is set, also in NCCL's own files; NCCL_TUNER_PLUGIN, if it
    // names another tuner than this library; NCCL_ENV_PLUGIN or libnccl-env.so, which may set any
    // of them; null: none. A job that needs equal bits in every run sets them.
    const char* names_algorithm = nullptr;
    bool channels = false;       // variables limit them
    bool other_network = false;  // NCCL_NET names one that is neither deft nor NCCL's Socket
};

// Reads the environment, so only a thread of the job's that makes a communicator calls it, when
// NCCL has made it: other threads of the job may set variables later.
JobLimits read_job_limits() noexcept;

// Whether a network of that name is one whose links NCCL knows little of. Null: NCCL chose.
bool tunable_network(const char* name) noexcept;

// A configuration of some communicator of this process has named CTAs. Any thread.
bool configuration_limits_channels() noexcept;
void note_limited_channels() noexcept;

}  // namespace deft::tuning
