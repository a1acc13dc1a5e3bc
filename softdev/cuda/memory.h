// SPDX-License-Identifier: Apache-2.0
// Every range of memory that the device knows, and those freed lately. The engine's lock guards all
// of it.
#pragma once

#include <cstdint>
#include <string>

#include "softdev/cuda/api.h"

namespace softdev {

struct Context;

enum class MemoryKind { device, host, registered, managed, async };

struct Allocation {
    std::uintptr_t base = 0;
    std::size_t bytes = 0;
    MemoryKind kind = MemoryKind::device;
    Context* context = nullptr;
    unsigned flags = 0;
    std::uint64_t id = 0;
    std::uint64_t pool = 0;  ///< of stream-ordered memory
    /// The call that freed it, whose bytes go when work queued before is over; else nullptr.
    const char* freed_by = nullptr;

    bool on_device() const { return kind != MemoryKind::host && kind != MemoryKind::registered; }
};

/// nullptr when the device or the host has no room. The address is aligned to a page.
Allocation* allocate(Context& context, std::size_t bytes, MemoryKind kind, unsigned flags);
/// Host memory that somebody else owns. nullptr when it overlaps another range.
Allocation* register_host(Context& context, void* base, std::size_t bytes, unsigned flags);
/// Forgets the range and gives its bytes back; `how` is told whoever uses it later.
void release(std::uintptr_t base, const char* how);

/// The allocation that holds the address, or nullptr.
Allocation* find_allocation(std::uintptr_t address);
inline Allocation* find_allocation(const void* address) {
    return find_allocation(reinterpret_cast<std::uintptr_t>(address));
}

std::size_t device_bytes_used(int device);
std::size_t pool_bytes_used(std::uint64_t pool);

/// How a range may be used.
enum class Use {
    kernel,  ///< kernels and collectives: plain host memory only with SOFTDEV_PAGEABLE=1
    copy,    ///< the host side of a copy: any host memory
};

/// CUDA_ERROR_INVALID_VALUE and a report for a range that is freed, past the end or not allowed.
CUresult check_range(std::uintptr_t address, std::size_t bytes, Use use, const std::string& label,
                     const std::string& place);

}  // namespace softdev
