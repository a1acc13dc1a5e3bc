// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/module/device.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace deft::ucx {
namespace {

// As long as the end of a channel takes at most.
constexpr int kUnmapTries = 10000;
constexpr auto kUnmapPause = std::chrono::microseconds(100);

// What the operator has set with UCX's own variables stays as it is.
void prefer(ucp_config_t* config, const char* name, const char* variable, const char* value) {
    if (std::getenv(variable) == nullptr) {
        (void)ucp_config_modify(config, name, value);
    }
}

// Those of memory and of GPUs reach no other host.
bool reaches_hosts(const char* device) {
    for (const char* prefix : {"memory", "cuda", "gdr", "rocm", "ze"}) {
        if (std::strncmp(device, prefix, std::strlen(prefix)) == 0) {
            return false;
        }
    }
    return true;
}

// `each(name, reaches_hosts)` with "TRANSPORT/DEVICE". UCP has no call that tells, but a text for
// people, with lines "# resource N : md N dev N flags F TRANSPORT/DEVICE".
template <class Each>
void for_each_resource(ucp_context_h context, Each&& each) {
    char* text = nullptr;
    std::size_t bytes = 0;
    FILE* const file = open_memstream(&text, &bytes);
    if (file == nullptr) {
        return;
    }
    ucp_context_print_info(context, file);
    std::fclose(file);
    char* rest = nullptr;
    for (const char* line = strtok_r(text, "\n", &rest); line != nullptr;
         line = strtok_r(nullptr, "\n", &rest)) {
        const char* const word = std::strrchr(line, ' ');
        const char* const slash = word == nullptr ? nullptr : std::strchr(word, '/');
        if (std::strstr(line, " resource ") != nullptr && slash != nullptr) {
            each(word + 1, reaches_hosts(slash + 1));
        }
    }
    std::free(text);
}

void say_no_network(const char* net_devices, char* problem, std::size_t room) {
    say(problem, room, "UCX finds no network device",
        *net_devices == '\0' ? "none that its own settings allow" : "none of this name");
}

}  // namespace

void say(char* problem, std::size_t room, const char* what, const char* why) {
    std::snprintf(problem, room, "%s: %s", what, why);
}

Device* Device::open(const char* net_devices, char* problem, std::size_t room) {
    ucp_config_t* config = nullptr;
    ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
    if (status != UCS_OK) {
        say(problem, room, "ucp_config_read", ucs_status_string(status));
        return nullptr;
    }
    if (*net_devices != '\0') {
        status = ucp_config_modify(config, "NET_DEVICES", net_devices);
    }
    // The receiver fetches, so that what it ends writes nothing any more.
    prefer(config, "RNDV_SCHEME", "UCX_RNDV_SCHEME", "get_zcopy");
    // Over TCP, which cannot be fetched from: with requests that read memory without a copy,
    // UCX 1.13 ends the process when the peer is lost (an assertion of uct_iface.h). No other
    // transport's rendezvous goes by these.
    prefer(config, "ZCOPY_THRESH", "UCX_ZCOPY_THRESH", "inf");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_AM;
    params.mt_workers_shared = 1;  // each worker has one thread at a time, and all this context
    ucp_context_h context = nullptr;
    if (status == UCS_OK) {
        status = ucp_init(&params, config, &context);
    }
    ucp_config_release(config);
    if (status == UCS_ERR_NO_DEVICE) {  // UCX_TLS allows transports over a network alone
        say_no_network(net_devices, problem, room);
        return nullptr;
    }
    if (status != UCS_OK) {
        say(problem, room, "ucp_init", ucs_status_string(status));
        return nullptr;
    }
    auto* const device = new (std::nothrow) Device(context);
    if (device == nullptr) {
        say(problem, room, "ucp_init", "no memory");
        ucp_cleanup(context);
        return nullptr;
    }
    // A name that UCX does not know is a line of its log; it goes on with shared memory.
    if (device->without_network()) {
        say_no_network(net_devices, problem, room);
        delete device;
        ucp_cleanup(context);
        return nullptr;
    }
    return device;
}

std::size_t Device::devices(char* text, std::size_t room) const {
    std::size_t used = 0;
    for_each_resource(context_, [&](const char* name, bool reaches) {
        if (reaches) {
            used += static_cast<std::size_t>(std::snprintf(
                used < room ? text + used : nullptr, used < room ? room - used : 0, "%s\n", name));
        }
    });
    return used;
}

// False also where UCX tells of itself in another form than it does.
bool Device::without_network() const {
    bool some = false;
    bool network = false;
    for_each_resource(context_, [&](const char*, bool reaches) {
        some = true;
        if (reaches) {
            network = true;
        }
    });
    return some && !network;
}

std::uint32_t Device::map(const void* data, std::size_t bytes, char* problem, std::size_t room) {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.address = const_cast<void*>(data);
    params.length = bytes;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
    ucp_mem_h memory = nullptr;
    const ucs_status_t status = ucp_mem_map(context_, &params, &memory);
    if (status != UCS_OK) {
        say(problem, room, "ucp_mem_map", ucs_status_string(status));
        return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t tries = 0; tries < kMost; ++tries) {
        const std::uint32_t key = next_;
        next_ = next_ + 1 == kMost ? 1 : next_ + 1;
        ucp_mem_h none = nullptr;
        if (memory_[key].compare_exchange_strong(none, memory, std::memory_order_release)) {
            return key;
        }
    }
    (void)ucp_mem_unmap(context_, memory);
    say(problem, room, "ucp_mem_map", "more pieces of memory than the module knows");
    return 0;
}

void Device::unmap(std::uint32_t key) {
    for (int i = 0; i < kUnmapTries && uses_[key % kMost].load(std::memory_order_acquire) > 0;
         ++i) {
        std::this_thread::sleep_for(kUnmapPause);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (key < memory_.size()) {
        if (const ucp_mem_h memory = memory_[key].exchange(nullptr); memory != nullptr) {
            (void)ucp_mem_unmap(context_, memory);
        }
    }
}

}  // namespace deft::ucx
