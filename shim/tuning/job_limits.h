// SPDX-License-Identifier: Apache-2.0
// What the job itself has said about how NCCL carries out its calls: that stands.
#pragma once

namespace deft::tuning {

// NCCL_ALGO or NCCL_PROTO, if it is set, also in NCCL's own files, or NCCL_TUNER_PLUGIN, if it
// names another tuner than this library; null: none. A job that needs equal bits in every run sets
// them.
const char* job_names_algorithm() noexcept;

// The job limits channels: by the environment, or in a configuration of some communicator of this
// process.
bool job_limits_channels() noexcept;
// A configuration has named CTAs. Any thread.
void note_limited_channels() noexcept;

}  // namespace deft::tuning
