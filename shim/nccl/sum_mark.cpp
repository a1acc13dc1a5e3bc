// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/sum_mark.h"

#include <atomic>
#include <utility>

namespace deft {
namespace {

struct Pending {
    const void* buffer = nullptr;  // null: none
    std::uint64_t bytes = 0;
    std::uint64_t mark = 0;
};
// A communication hook makes its call in the thread in which it was called.
thread_local constinit Pending t_pending;
std::atomic<bool> g_ended{false};

}  // namespace

void mark_next_sum(const void* buffer, std::uint64_t bytes, const SumMark& mark) noexcept {
    t_pending = {buffer, bytes, pack(mark)};
}

std::uint64_t take_mark(const Call& call) noexcept {
    const Pending pending = std::exchange(t_pending, {});
    const bool meant = pending.buffer != nullptr && pending.buffer == call.receive &&
                       call.send == call.receive &&
                       pending.bytes == call.count * element_size(call.type);
    return meant ? pending.mark : 0;
}

void end_marks() noexcept {
    g_ended.store(true, std::memory_order_relaxed);
}

bool marks_ended() noexcept {
    return g_ended.load(std::memory_order_relaxed);
}

}  // namespace deft
