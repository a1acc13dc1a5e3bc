// SPDX-License-Identifier: Apache-2.0
// What a scheduler inside the framework would send, piece by piece, in place of whole buckets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/jobs/replay/profile.h"

namespace replay {

struct Piece {
    std::size_t bucket = 0;
    std::uint64_t begin = 0;  ///< bytes, whole floats
    std::uint64_t end = 0;
    std::uint64_t message = 0;  ///< neighbours with one number are sent in one NCCL group
};

/// From a plan as deft plan --out writes it: every byte of every bucket once per iteration, on one
/// link. Sizes become those of `scaled`, the profile the plan was made for with its sizes changed.
/// Throws InputError.
std::vector<Piece> schedule_from_text(const std::string& name, const std::string& text,
                                      const Profile& scaled);
std::vector<Piece> read_schedule(const std::string& path, const Profile& scaled);

}  // namespace replay
