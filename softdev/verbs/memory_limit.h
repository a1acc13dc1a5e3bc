// SPDX-License-Identifier: Apache-2.0
// What a process may lock in memory: RLIMIT_MEMLOCK, charged by registrations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softdev::verbs {

/// Pages that are charged to this process until the object goes. Counted as the kernel's
/// ib_umem_get() does: whole pages, a page that two regions hold twice, and no limit for who has
/// CAP_IPC_LOCK in the first user namespace.
class LockedPages {
public:
    LockedPages() = default;
    LockedPages(LockedPages&& other) noexcept;
    LockedPages& operator=(LockedPages&& other) noexcept;
    ~LockedPages();

    /// 0; ENOMEM: they would be above the limit; EPERM: the limit is 0. Nothing is charged then.
    int charge(const void* at, std::size_t length);

private:
    std::uint64_t pages_ = 0;
};

}  // namespace softdev::verbs
