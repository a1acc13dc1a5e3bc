// SPDX-License-Identifier: Apache-2.0
// Protection domains and memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "softdev/verbs/api.h"
#include "softdev/verbs/context.h"
#include "softdev/verbs/device_memory.h"
#include "softdev/verbs/faults.h"
#include "softdev/verbs/report.h"

using namespace softdev::verbs;

namespace {

constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned kKnownAccess =
    IBV_ACCESS_LOCAL_WRITE | kRemoteWrites | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_OPTIONAL_RANGE;

bool may_register(const ibv_pd* domain, std::size_t length, unsigned access, const char* call) {
    const Pd& pd = static_cast<const Pd&>(*domain);
    if (!pd.life.check(call, "protection domain")) {
        errno = EINVAL;
        return false;
    }
    if (length == 0 || (access & ~kKnownAccess) != 0) {
        errno = refuse(EINVAL, "%s: %zu bytes, access 0x%x", call, length, access);
        return false;
    }
    if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        errno = refuse(EINVAL, "%s: access 0x%x: remote writes need IBV_ACCESS_LOCAL_WRITE", call,
                       access);
        return false;
    }
    if (inject(Fault::reg_fails)) {
        errno = ENOMEM;
        return false;
    }
    return true;
}

ibv_mr* add(ibv_pd* domain, std::unique_ptr<Region> region, std::size_t length, unsigned access) {
    Nic& nic = nic_of(domain->context);
    region->context = domain->context;
    region->pd = domain;
    region->length = length;
    region->access = access;
    const deft::MutexLock lock(nic.mutex);
    ++static_cast<Pd*>(domain)->users;
    ++nic.objects;
    return nic.memory.add(std::move(region));
}

ibv_mr* register_memory(ibv_pd* domain, void* at, std::size_t length, std::uint64_t iova,
                        unsigned access) {
    if (!may_register(domain, length, access, "ibv_reg_mr")) {
        return nullptr;
    }
    auto region = std::make_unique<Region>();
    bool outside = false;
    region->addr = at;
    region->iova = iova;
    region->host = device_alias(at, length, outside);
    region->gpu = region->host != nullptr;
    if (region->host == nullptr) {
        region->host = static_cast<char*>(at);
        if (!outside) {
            errno = region->locked.charge(at, length);
            if (errno != 0) {
                return nullptr;
            }
        }
        if (outside || pin(at, length, (access & IBV_ACCESS_LOCAL_WRITE) != 0) != 0) {
            return static_cast<ibv_mr*>(refuse_object(
                EFAULT, "ibv_reg_mr: not all of %zu bytes at %p may be used", length, at));
        }
    }
    return add(domain, std::move(region), length, access);
}

}  // namespace

SOFTVERBS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
    Nic& nic = nic_of(context);
    auto made = std::make_unique<Pd>();
    made->context = context;
    const deft::MutexLock lock(nic.mutex);
    ++nic.objects;
    return made.release();
}

SOFTVERBS_EXPORT int ibv_dealloc_pd(ibv_pd* domain) {
    auto* const pd = static_cast<Pd*>(domain);
    if (!pd->life.check("ibv_dealloc_pd", "protection domain")) {
        return EINVAL;
    }
    Nic& nic = nic_of(pd->context);
    const deft::MutexLock lock(nic.mutex);
    if (pd->users != 0) {
        return refuse(EBUSY, "ibv_dealloc_pd: %d regions or queue pairs still use it", pd->users);
    }
    --nic.objects;
    pd->life.end();
    bury(std::unique_ptr<Pd>(pd));
    return 0;
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* at, std::size_t length, int access) {
    return register_memory(pd, at, length, reinterpret_cast<std::uint64_t>(at),
                           static_cast<unsigned>(access));
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* at, std::size_t length,
                                         std::uint64_t iova, int access) {
    return register_memory(pd, at, length, iova, static_cast<unsigned>(access));
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* at, std::size_t length,
                                          std::uint64_t iova, unsigned access) {
    return register_memory(pd, at, length, iova, access);
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length,
                                           std::uint64_t iova, int fd, int access) {
    if (fd < 0) {  // how programs ask whether there is such a thing
        errno = EBADF;
        return nullptr;
    }
    if (!may_register(pd, length, static_cast<unsigned>(access), "ibv_reg_dmabuf_mr")) {
        return nullptr;
    }
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (iova % page != offset % page) {
        return static_cast<ibv_mr*>(refuse_object(
            EINVAL, "ibv_reg_dmabuf_mr: iova 0x%lx and offset 0x%lx differ within a page", iova,
            offset));
    }
    const std::uint64_t start = offset / page * page;
    const std::size_t whole = offset - start + length;
    void* const at =
        ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(start));
    if (at == MAP_FAILED) {
        return nullptr;
    }
    auto region = std::make_unique<Region>();
    region->mapping = Mapping(at, whole);
    if (pin(at, whole, true) != 0) {  // past the end of the file
        return static_cast<ibv_mr*>(
            refuse_object(EINVAL, "ibv_reg_dmabuf_mr: the buffer ends before %zu bytes", length));
    }
    region->iova = iova;
    region->gpu = true;
    region->host = static_cast<char*>(at) + (offset - start);
    return add(pd, std::move(region), length, static_cast<unsigned>(access));
}

SOFTVERBS_EXPORT int ibv_rereg_mr(ibv_mr* /*mr*/, int /*flags*/, ibv_pd* /*pd*/, void* /*at*/,
                                  std::size_t /*length*/, int /*access*/) {
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT;
}

SOFTVERBS_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
    auto* const region = static_cast<Region*>(mr);
    if (!region->life.check("ibv_dereg_mr", "memory region")) {
        return EINVAL;
    }
    Nic& nic = nic_of(region->context);
    std::unique_ptr<Region> removed;
    {
        const deft::MutexLock lock(nic.mutex);
        removed = nic.take_back(*region);
        --static_cast<Pd*>(region->pd)->users;
        --nic.objects;
        region->life.end();
        region->mapping = Mapping();
        region->locked = LockedPages();
    }
    bury(std::move(removed));
    return 0;
}

SOFTVERBS_EXPORT void* softverbs_alloc_device(std::size_t bytes) {
    return allocate_device_memory(bytes);
}

SOFTVERBS_EXPORT int softverbs_copy_to_device(void* device, const void* host, std::size_t bytes) {
    bool outside = false;
    char* const at = device_alias(device, bytes, outside);
    return at == nullptr ? EINVAL : (std::memcpy(at, host, bytes), 0);
}

SOFTVERBS_EXPORT int softverbs_copy_from_device(void* host, const void* device, std::size_t bytes) {
    bool outside = false;
    const char* const at = device_alias(device, bytes, outside);
    return at == nullptr ? EINVAL : (std::memcpy(host, at, bytes), 0);
}

SOFTVERBS_EXPORT int softverbs_free_device(void* at) {
    return free_device_memory(at) ? 0 : EINVAL;
}
