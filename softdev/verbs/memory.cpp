// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace softdev::verbs {
namespace {

// The low byte of a key is a variant, as on real devices: a neighbour's key is never one off.
constexpr unsigned kVariantBits = 8;
constexpr std::uint32_t kLocalVariant = 0x11;
constexpr std::uint32_t kRemoteVariant = 0xa5;

// Kernels before 5.14 refuse the advice itself, later ones memory that may not be used so.
bool kernel_can_populate() {
    static const bool can = [] {
        const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        void* const probe =
            ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const bool answer = ::madvise(probe, page, MADV_POPULATE_WRITE) == 0;
        ::munmap(probe, page);
        return answer;
    }();
    return can;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : at_(std::exchange(other.at_, nullptr)), length_(other.length_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(length_, other.length_);
    return *this;
}

Mapping::~Mapping() {
    if (at_ != nullptr) {
        ::munmap(at_, length_);
    }
}

char* Region::find(std::uint64_t address, std::uint64_t bytes) const {
    if (address < iova || address - iova > length || bytes > length - (address - iova)) {
        return nullptr;
    }
    return host + (address - iova);
}

Region* MemoryTable::add(std::unique_ptr<Region> region) {
    const std::uint32_t index = next_++;
    region->handle = index;
    region->lkey = index << kVariantBits | kLocalVariant;
    region->rkey = index << kVariantBits | kRemoteVariant;
    Region* const made = region.get();
    by_rkey_[made->rkey] = made;
    by_lkey_[made->lkey] = std::move(region);
    return made;
}

std::unique_ptr<Region> MemoryTable::remove(const Region& region) {
    const auto found = by_lkey_.find(region.lkey);
    if (found == by_lkey_.end()) {
        return nullptr;
    }
    by_rkey_.erase(region.rkey);
    auto removed = std::move(found->second);
    by_lkey_.erase(found);
    return removed;
}

char* MemoryTable::local(const ibv_pd* pd, const ibv_sge& sge, bool written) const {
    const auto found = by_lkey_.find(sge.lkey);
    if (found == by_lkey_.end() || found->second->pd != pd ||
        (written && (found->second->access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
        return nullptr;
    }
    return found->second->find(sge.addr, sge.length);
}

char* MemoryTable::remote(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                          std::uint64_t bytes, unsigned need) const {
    const auto found = by_rkey_.find(key);
    if (found == by_rkey_.end() || found->second->pd != pd || (found->second->access & need) == 0) {
        return nullptr;
    }
    return found->second->find(address, bytes);
}

bool MemoryTable::gpu(std::uint32_t key) const {
    const auto found = by_rkey_.find(key);
    return found != by_rkey_.end() && found->second->gpu;
}

int pin(void* at, std::size_t length, bool written) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(at) / page * page;
    const std::uintptr_t end =
        (reinterpret_cast<std::uintptr_t>(at) + length + page - 1) / page * page;
    const bool done = ::madvise(reinterpret_cast<void*>(first), end - first,
                                written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
    return done || !kernel_can_populate() ? 0 : EFAULT;
}

}  // namespace softdev::verbs
