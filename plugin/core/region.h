// SPDX-License-Identifier: Apache-2.0
// Memory that NCCL has registered (regMr), and what kinds of link have made of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace deft::net {

struct Memory {
    enum class Kind : std::uint8_t { Host, Device };
    const void* data = nullptr;
    std::size_t size = 0;
    Kind kind = Kind::Host;
    int dmabuf = -1;  // Device: the descriptor, the caller's, to be used only in the call; -1: none
    std::uint64_t dmabuf_offset = 0;
};

// One piece of memory in one protection domain. Its destructor deregisters: from then on the keys
// open nothing. It keeps whatever it needs of its domain alive.
class Registration {
public:
    virtual ~Registration() = default;
    std::uint32_t local_key = 0;   // for this host's own work requests
    std::uint32_t remote_key = 0;  // for grants
};

// A protection domain of a kind of link: registrations are valid on the paths that are made in it.
// Any thread.
class Domain {
public:
    virtual ~Domain() = default;
    // What is registered already for the same address, length and kind, else a new registration;
    // gone with the last holder, as an entry that outlives deregMr would hand out keys of memory
    // that was unmapped and mapped again. NULL and the cause on failure. May take milliseconds: for
    // regMr only.
    std::shared_ptr<const Registration> registration(const Memory& memory, std::string& problem);
    std::size_t held();  // registrations that somebody holds

protected:
    virtual std::unique_ptr<Registration> enter(const Memory& memory, std::string& problem) = 0;

private:
    struct Entry {
        const void* data;
        std::size_t size;
        Memory::Kind kind;
        std::weak_ptr<const Registration> registration;
    };
    Mutex mutex_;
    std::vector<Entry> entries_ DEFT_GUARDED_BY(mutex_);
};

// What NCCL holds as a memory handle. Constant once made; lives from regMr to deregMr, and with it
// its registrations.
class Region {
public:
    static constexpr std::size_t kMaxDomains = 16;

    // Registers in every domain. Where one refuses, the region has no registration there, and
    // `problem` the first cause.
    Region(const Memory& memory, std::span<const std::shared_ptr<Domain>> domains,
           std::string& problem);
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    const Memory& memory() const { return memory_; }
    // NULL: it is not registered there.
    const Registration* in(const Domain* domain) const {
        for (std::size_t i = 0; i < count_; ++i) {
            if (entries_[i].domain == domain) {
                return entries_[i].registration.get();
            }
        }
        return nullptr;
    }

private:
    struct Entry {
        const Domain* domain = nullptr;
        std::shared_ptr<const Registration> registration;
    };
    Memory memory_;
    std::array<Entry, kMaxDomains> entries_;
    std::size_t count_ = 0;
};

}  // namespace deft::net
