// SPDX-License-Identifier: Apache-2.0
// Protection domains, registered memory and its keys.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "softdev/verbs/life.h"
#include "softdev/verbs/memory_limit.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace softdev::verbs {

struct Pd : ibv_pd {
    Life life;
    int users = 0;  ///< regions and queue pairs; under Nic::mutex
};

/// A mapping that goes with its owner.
class Mapping {
public:
    Mapping() = default;
    Mapping(void* at, std::size_t length) : at_(at), length_(length) {}
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    ~Mapping();

private:
    void* at_ = nullptr;
    std::size_t length_ = 0;
};

struct Region : ibv_mr {
    Life life;
    std::uint64_t iova = 0;
    char* host = nullptr;  ///< where the device itself finds the first byte
    unsigned access = 0;
    bool gpu = false;    ///< memory of one
    Mapping mapping;     ///< the device's own, of a dmabuf
    LockedPages locked;  ///< none of a GPU's memory

    /// Where these bytes are; nullptr: not all of them are of this region.
    char* find(std::uint64_t address, std::uint64_t bytes) const;
};

/// A write that has arrived and whose bytes are not in their place yet.
struct HeldWrite {
    char* target = nullptr;
    std::vector<char> bytes;

    bool overlaps(const char* begin, std::size_t length) const {
        return target < begin + length && begin < target + bytes.size();
    }
};

/// All regions of a device, by key. Keys for local and for remote use differ, and none comes again
/// soon: one that is mixed up or outlives its region is seen. Under Nic::mutex.
class MemoryTable {
public:
    Region* add(std::unique_ptr<Region> region);
    std::unique_ptr<Region> remove(const Region& region);

    /// Memory that a work request names; nullptr: no such key, bounds, rights or protection domain.
    char* local(const ibv_pd* pd, const ibv_sge& sge, bool written) const;
    /// Memory that a peer names. `need` is an access flag.
    char* remote(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                 unsigned need) const;
    /// Whether a peer's key is of a GPU's memory.
    bool gpu(std::uint32_t key) const;

private:
    std::unordered_map<std::uint32_t, std::unique_ptr<Region>> by_lkey_;
    std::unordered_map<std::uint32_t, Region*> by_rkey_;
    std::uint32_t next_ = 1;
};

/// 0 if all of it is mapped and may be used that way, else EFAULT. Pages are brought in, as pinning
/// them would.
int pin(void* at, std::size_t length, bool written);

}  // namespace softdev::verbs
