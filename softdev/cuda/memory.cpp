// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/memory.h"

#include <sys/mman.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "softdev/cuda/engine.h"
#include "softdev/cuda/history.h"
#include "softdev/cuda/report.h"

namespace softdev {
namespace {

constexpr std::size_t kFreedKept = 4096;

struct Freed {
    std::size_t bytes;
    std::string how;
};

struct Registry {
    std::map<std::uintptr_t, std::unique_ptr<Allocation>> live;
    std::map<std::uintptr_t, Freed> freed;
    std::deque<std::uintptr_t> freed_order;
    std::vector<std::size_t> used;
    std::uint64_t next_id = 1;
};

Registry& registry() {
    static Registry* const value = new Registry;
    return *value;
}

std::size_t& used_of(int device) {
    auto& used = registry().used;
    if (used.size() <= static_cast<std::size_t>(device)) {
        used.resize(static_cast<std::size_t>(device) + 1);
    }
    return used[static_cast<std::size_t>(device)];
}

std::size_t mapped_bytes(std::size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

void* obtain(std::size_t bytes) {
    void* base = mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base != MAP_FAILED ? base : nullptr;
}

// The bytes go, their addresses stay taken as long as the range is remembered as freed: the job's
// own memory cannot appear there, and who touches them without asking gets a fault.
void give_back(std::uintptr_t base, std::size_t bytes) {
    mmap(reinterpret_cast<void*>(base), mapped_bytes(bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Allocation* add(std::uintptr_t base, std::size_t bytes, MemoryKind kind, Context& context,
                unsigned flags) {
    Registry& r = registry();
    auto allocation = std::make_unique<Allocation>();
    allocation->base = base;
    allocation->bytes = bytes;
    allocation->kind = kind;
    allocation->context = &context;
    allocation->flags = flags;
    allocation->id = r.next_id++;
    forget_history(base, bytes);
    return (r.live[base] = std::move(allocation)).get();
}

}  // namespace

Allocation* allocate(Context& context, std::size_t bytes, MemoryKind kind, unsigned flags) {
    std::size_t& used = used_of(context.device);
    const bool counts = kind != MemoryKind::host;
    if (counts && (bytes > settings().memory_bytes || used > settings().memory_bytes - bytes)) {
        return nullptr;
    }
    void* base = obtain(bytes);
    if (base == nullptr) {
        return nullptr;
    }
    if (counts) {
        used += bytes;
    }
    return add(reinterpret_cast<std::uintptr_t>(base), bytes, kind, context, flags);
}

Allocation* register_host(Context& context, void* base, std::size_t bytes, unsigned flags) {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const auto next = registry().live.lower_bound(address);
    if (find_allocation(address) != nullptr ||
        (next != registry().live.end() && next->first < address + bytes)) {
        return nullptr;
    }
    return add(address, bytes, MemoryKind::registered, context, flags);
}

void release(std::uintptr_t base, const char* how) {
    Registry& r = registry();
    const auto it = r.live.find(base);
    if (it == r.live.end()) {
        return;
    }
    const std::unique_ptr<Allocation> allocation = std::move(it->second);
    r.live.erase(it);
    forget_history(base, allocation->bytes);
    if (allocation->kind == MemoryKind::registered) {
        return;  // plain host memory again
    }
    if (allocation->kind != MemoryKind::host) {
        used_of(allocation->context->device) -= allocation->bytes;
    }
    r.freed[base] = Freed{allocation->bytes, how};
    r.freed_order.push_back(base);
    if (r.freed_order.size() > kFreedKept) {
        const auto oldest = r.freed.find(r.freed_order.front());
        r.freed_order.pop_front();
        munmap(reinterpret_cast<void*>(oldest->first), mapped_bytes(oldest->second.bytes));
        r.freed.erase(oldest);
    }
    give_back(base, allocation->bytes);
}

Allocation* find_allocation(std::uintptr_t address) {
    auto& live = registry().live;
    auto it = live.upper_bound(address);
    if (it == live.begin()) {
        return nullptr;
    }
    --it;
    return address - it->first < it->second->bytes ? it->second.get() : nullptr;
}

std::size_t device_bytes_used(int device) {
    return used_of(device);
}

std::size_t pool_bytes_used(std::uint64_t pool) {
    std::size_t bytes = 0;
    for (const auto& [base, allocation] : registry().live) {
        bytes += allocation->pool == pool ? allocation->bytes : 0;
    }
    return bytes;
}

CUresult check_range(std::uintptr_t address, std::size_t bytes, Use use, const std::string& label,
                     const std::string& place) {
    if (!strict() || bytes == 0) {
        return CUDA_SUCCESS;
    }
    const auto* pointer = reinterpret_cast<const void*>(address);
    if (const Allocation* a = find_allocation(address)) {
        if (a->freed_by != nullptr) {
            report("%s%s uses %p (%zu bytes), which %s frees", label.c_str(), place.c_str(),
                   pointer, bytes, a->freed_by);
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (bytes > a->bytes - (address - a->base)) {
            report(
                "%s%s runs past the end: %zu bytes from %p, but the allocation of %zu bytes at %p"
                " ends %zu bytes after it",
                label.c_str(), place.c_str(), bytes, pointer, a->bytes,
                reinterpret_cast<const void*>(a->base), a->bytes - (address - a->base));
            return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    }
    auto& freed = registry().freed;
    auto it = freed.upper_bound(address);
    if (it != freed.begin()) {
        --it;
        if (address - it->first < it->second.bytes) {
            report(
                "%s%s uses freed memory: %p (%zu bytes) lies in the %zu bytes at %p, freed by %s",
                label.c_str(), place.c_str(), pointer, bytes, it->second.bytes,
                reinterpret_cast<const void*>(it->first), it->second.how.c_str());
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (address == 0) {
        report("%s%s uses a NULL pointer (%zu bytes)", label.c_str(), place.c_str(), bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (use == Use::kernel && !settings().pageable) {
        report(
            "%s%s uses %p (%zu bytes), which the device does not know: plain host memory needs "
            "SOFTDEV_PAGEABLE=1",
            label.c_str(), place.c_str(), pointer, bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace softdev

CUresult softdevCheckRange(const void* ptr, std::size_t bytes, const char* label) {
    std::lock_guard<std::mutex> lock(softdev::device().mutex);
    return softdev::check_range(reinterpret_cast<std::uintptr_t>(ptr), bytes, softdev::Use::kernel,
                                label != nullptr ? label : "softdevCheckRange", "");
}
