// SPDX-License-Identifier: Apache-2.0
#include "topology/verbs.h"

#include <dlfcn.h>

namespace deft {
namespace {

constexpr char kVersion[] = "IBVERBS_1.1";  // NCCL's for all of these

struct Library {
    int (*fork_init)() = nullptr;
    void** (*get_device_list)(int* count) = nullptr;
    void (*free_device_list)(void** list) = nullptr;
    const char* (*get_device_name)(void* device) = nullptr;
    void* (*open_device)(void* device) = nullptr;
    int (*close_device)(void* context) = nullptr;
};

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlvsym(library, name, kVersion));
    return function != nullptr;
}

bool load(const std::string& named, Library& library) {
    for (const char* const name :
         {named.empty() ? nullptr : named.c_str(), "libibverbs.so", "libibverbs.so.1"}) {
        // Not closed: NCCL is about to use it.
        if (void* const file = name != nullptr ? ::dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr) {
            return look_up(file, "ibv_fork_init", library.fork_init) &&
                   look_up(file, "ibv_get_device_list", library.get_device_list) &&
                   look_up(file, "ibv_free_device_list", library.free_device_list) &&
                   look_up(file, "ibv_get_device_name", library.get_device_name) &&
                   look_up(file, "ibv_open_device", library.open_device) &&
                   look_up(file, "ibv_close_device", library.close_device);
        }
    }
    return false;
}

}  // namespace

std::optional<std::vector<VerbsDevice>> list_verbs_devices(const std::string& named) {
    Library library;
    if (!load(named, library)) {
        return std::nullopt;
    }
    library.fork_init();  // wants to be the first call, as it is NCCL's
    std::vector<VerbsDevice> devices;
    int count = 0;
    void** const list = library.get_device_list(&count);
    for (int i = 0; list != nullptr && i < count; ++i) {
        const char* const name = library.get_device_name(list[i]);
        void* const context = library.open_device(list[i]);
        if (context != nullptr) {
            library.close_device(context);
        }
        devices.push_back({name != nullptr ? name : "", context != nullptr});
    }
    if (list != nullptr) {
        library.free_device_list(list);
    }
    return devices;
}

}  // namespace deft
