// SPDX-License-Identifier: Apache-2.0
// Devices, ports and their tables.
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "softdev/verbs/api.h"
#include "softdev/verbs/context.h"
#include "softdev/verbs/pieces.h"
#include "softdev/verbs/report.h"

using namespace softdev::verbs;

namespace {

constexpr int kMostObjects = 65536;
constexpr int kMostWork = 16384;
constexpr int kMostCompletions = 1 << 20;

int query_port(ibv_context* context, std::uint8_t number, ibv_port_attr* attr, std::size_t size) {
    const Port* const port = port_of(context, number);
    if (port == nullptr) {
        return refuse(EINVAL, "ibv_query_port: there is no port %u", number);
    }
    const ibv_port_attr all = port->attributes();
    std::memcpy(attr, &all, std::min(size, sizeof all));
    return 0;
}

// Index beyond the table: EINVAL. Beyond what is in it: an empty entry.
int gid_entry(ibv_context* context, unsigned number, unsigned index, ibv_gid_entry& entry) {
    const Port* const port = port_of(context, number);
    if (port == nullptr || index >= kGidTable) {
        return EINVAL;
    }
    const auto gids = port->gids();
    entry = index < gids.size() ? gids[index] : ibv_gid_entry{};
    return 0;
}

}  // namespace

SOFTVERBS_EXPORT ibv_device** ibv_get_device_list(int* count) {
    std::string error;
    const auto devices = devices_of_environment(error);
    if (count != nullptr) {
        *count = 0;
    }
    if (!devices) {
        if (!error.empty()) {
            std::fprintf(stderr, "softverbs: SOFTDEV_VERBS: %s\n", error.c_str());
        }
        errno = error.empty() ? ENOSYS : EINVAL;  // as without a kernel that knows RDMA
        return nullptr;
    }
    auto** const list = static_cast<ibv_device**>(std::calloc(devices->size() + 1, sizeof(void*)));
    // Devices stay: programs keep pointers to them in contexts, and compare them.
    static auto* const all = new std::vector<std::unique_ptr<Device>>;
    static deft::Mutex mutex;
    const deft::MutexLock lock(mutex);
    for (std::size_t i = 0; list != nullptr && i < devices->size(); ++i) {
        all->push_back(std::make_unique<Device>((*devices)[i], static_cast<int>(i)));
        list[i] = all->back().get();
    }
    if (count != nullptr && list != nullptr) {
        *count = static_cast<int>(devices->size());
    }
    return list;
}

SOFTVERBS_EXPORT void ibv_free_device_list(ibv_device** list) {
    std::free(list);
}

SOFTVERBS_EXPORT const char* ibv_get_device_name(ibv_device* device) {
    return device->name;
}

SOFTVERBS_EXPORT int ibv_get_device_index(ibv_device* device) {
    return static_cast<Device*>(device)->index;
}

SOFTVERBS_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
    return htobe64(static_cast<Device*>(device)->guid);
}

SOFTVERBS_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
    auto opened = std::make_unique<Context>(*static_cast<Device*>(device));
    install_operations(*opened);
    opened->query_port = query_port;
    if (const int error = opened->nic.start(); error != 0) {
        errno = error;
        return nullptr;
    }
    return &opened.release()->context;
}

SOFTVERBS_EXPORT int ibv_close_device(ibv_context* context) {
    Context& opened = context_of(context);
    {
        const deft::MutexLock lock(opened.nic.mutex);
        if (opened.nic.objects != 0) {
            return refuse(EBUSY, "ibv_close_device: %d objects of %s have not been destroyed",
                          opened.nic.objects, opened.device.settings.name.c_str());
        }
    }
    delete &opened;
    return 0;
}

SOFTVERBS_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
    const Context& opened = context_of(context);
    *attr = {};
    std::strcpy(attr->fw_ver, "0.1.0");
    attr->node_guid = attr->sys_image_guid = htobe64(opened.device.guid);
    attr->max_mr_size = UINT64_MAX;
    attr->page_size_cap = 4096;
    attr->vendor_id = 0x5d;
    attr->hw_ver = 1;
    attr->max_qp = attr->max_cq = attr->max_pd = attr->max_mr = kMostObjects;
    attr->max_qp_wr = kMostWork;
    attr->device_cap_flags =
        IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN;
    attr->max_sge = attr->max_sge_rd = kMostSge;
    attr->max_cqe = kMostCompletions;
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
    attr->max_res_rd_atom = 16 * kMostObjects;
    attr->atomic_cap = IBV_ATOMIC_HCA;
    attr->max_pkeys = 1;
    attr->local_ca_ack_delay = 15;
    attr->phys_port_cnt = static_cast<std::uint8_t>(opened.nic.ports().size());
    return 0;
}

// Programs that take the function's address give it what was ibv_port_attr in 2006, and has grown
// by one field since then.
SOFTVERBS_EXPORT int ibv_query_port(ibv_context* context, std::uint8_t number,
                                    _compat_ibv_port_attr* attr) {
    return query_port(context, number, reinterpret_cast<ibv_port_attr*>(attr),
                      offsetof(ibv_port_attr, port_cap_flags2));
}

SOFTVERBS_EXPORT int ibv_query_gid(ibv_context* context, std::uint8_t number, int index,
                                   ibv_gid* gid) {
    ibv_gid_entry entry{};
    const int error = gid_entry(context, number, static_cast<unsigned>(index), entry);
    if (error != 0) {
        errno = error;
        return -1;
    }
    *gid = entry.gid;
    return 0;
}

SOFTVERBS_EXPORT int _ibv_query_gid_ex(ibv_context* context, std::uint32_t number,
                                       std::uint32_t index, ibv_gid_entry* entry,
                                       std::uint32_t flags, std::size_t size) {
    ibv_gid_entry found{};
    if (flags != 0 || size < sizeof found) {
        return EINVAL;
    }
    const int error = gid_entry(context, number, index, found);
    if (error != 0) {
        return error;
    }
    if (found.port_num == 0) {
        return ENODATA;
    }
    *entry = found;
    return 0;
}

SOFTVERBS_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                              std::size_t most, std::uint32_t flags,
                                              std::size_t size) {
    if (flags != 0 || size != sizeof(ibv_gid_entry)) {
        return -EINVAL;
    }
    std::size_t got = 0;
    for (const Port& port : nic_of(context).ports()) {
        for (const ibv_gid_entry& entry : port.gids()) {
            if (got == most) {
                return -EINVAL;
            }
            entries[got++] = entry;
        }
    }
    return static_cast<ssize_t>(got);
}

// Of the private interface, but ibv_devinfo wants it: 0 InfiniBand or RoCE v1, 1 RoCE v2.
SOFTVERBS_EXPORT int ibv_query_gid_type(ibv_context* context, std::uint8_t number, unsigned index,
                                        int* type) {
    ibv_gid_entry entry{};
    if (gid_entry(context, number, index, entry) != 0) {
        errno = EINVAL;
        return -1;
    }
    *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
    return 0;
}

SOFTVERBS_EXPORT int ibv_query_pkey(ibv_context* context, std::uint8_t number, int index,
                                    __be16* pkey) {
    if (port_of(context, number) == nullptr || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htobe16(0xffff);
    return 0;
}

SOFTVERBS_EXPORT int ibv_get_pkey_index(ibv_context* context, std::uint8_t number, __be16 pkey) {
    if (port_of(context, number) == nullptr || pkey != htobe16(0xffff)) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}
