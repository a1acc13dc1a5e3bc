// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/module/device.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
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
    if (status != UCS_OK) {
        say(problem, room, "ucp_init", ucs_status_string(status));
        return nullptr;
    }
    auto* const device = new (std::nothrow) Device(context);
    if (device == nullptr) {
        say(problem, room, "ucp_init", "no memory");
        ucp_cleanup(context);
    }
    return device;
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
