// SPDX-License-Identifier: Apache-2.0
// What the job's companion says of a sum (deft_mark_sum() of include/deft/deft.h), in one word that
// travels with the call.
#pragma once

#include <cstdint>

#include "deft/deft.h"
#include "shim/nccl/call.h"

namespace deft {

struct SumMark {
    std::uint32_t kind = DEFT_SUM_BUCKET;
    std::uint32_t module = 0;  // of a bucket, from 1
    std::uint32_t place = 0;   // among the module's of one iteration
    bool last = false;

    static constexpr std::uint32_t kMostPlaces = 1U << 23;
};

// 0 stands for nothing: no bucket is of module 0.
constexpr std::uint64_t pack(const SumMark& mark) {
    return std::uint64_t{mark.kind} << 56 | std::uint64_t{mark.module} << 24 |
           std::uint64_t{mark.place} << 1 | (mark.last ? 1 : 0);
}
constexpr SumMark unpack(std::uint64_t mark) {
    return {static_cast<std::uint32_t>(mark >> 56), static_cast<std::uint32_t>(mark >> 24),
            static_cast<std::uint32_t>(mark >> 1) & (SumMark::kMostPlaces - 1), (mark & 1) != 0};
}
constexpr bool is_bucket(std::uint64_t mark) {
    return mark != 0 && unpack(mark).kind == DEFT_SUM_BUCKET;
}

// Of this thread's very next all-reduce, if that is of these bytes in this place.
void mark_next_sum(const void* buffer, std::uint64_t bytes, const SumMark& mark) noexcept;
// That all-reduce has come: its mark, or 0. Nothing is left for the one after it.
std::uint64_t take_mark(const Call& call) noexcept;

// The companion of this process has ended: a mark that is missing from now on says nothing about
// the call. Any thread.
void end_marks() noexcept;
bool marks_ended() noexcept;

}  // namespace deft
