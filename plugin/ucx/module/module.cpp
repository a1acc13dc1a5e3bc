// SPDX-License-Identifier: Apache-2.0
// The module's face: C, and nothing thrown.
#include <new>

#include "deft/abi/ucx_module.h"
#include "plugin/ucx/module/channel.h"
#include "plugin/ucx/module/device.h"
#include "plugin/ucx/module/gate.h"

namespace {

using deft::ucx::Call;
using deft::ucx::Channel;
using deft::ucx::Device;

Device& of(deft_ucx_device_t* device) {
    return *reinterpret_cast<Device*>(device);
}
Channel& of(deft_ucx_channel_t* channel) {
    return *reinterpret_cast<Channel*>(channel);
}
const Channel& of(const deft_ucx_channel_t* channel) {
    return *reinterpret_cast<const Channel*>(channel);
}

// The only thing that is thrown below is that there is no memory.
template <class Function, class Result>
Result guarded(Function&& function, Result otherwise, Result while_exiting) noexcept {
    const Call call;
    if (!call) {
        return while_exiting;
    }
    try {
        return function();
    } catch (...) {
        return otherwise;
    }
}
template <class Function>
auto guarded(Function&& function, decltype(function()) otherwise) noexcept {
    return guarded(function, otherwise, otherwise);
}

deft_ucx_device_t* open(const char* net_devices, char* problem, size_t room) {
    return guarded(
        [&] {
            return reinterpret_cast<deft_ucx_device_t*>(Device::open(net_devices, problem, room));
        },
        nullptr);
}

uint32_t map(deft_ucx_device_t* device, const void* data, size_t bytes, char* problem,
             size_t room) {
    return guarded([&] { return of(device).map(data, bytes, problem, room); }, 0);
}

size_t devices(const deft_ucx_device_t* device, char* text, size_t room) {
    return reinterpret_cast<const Device*>(device)->devices(text, room);
}

void unmap(deft_ucx_device_t* device, uint32_t key) {
    if (const Call call; call) {
        of(device).unmap(key);
    }
}

deft_ucx_channel_t* make(deft_ucx_device_t* device, char* problem, size_t room) {
    return guarded(
        [&] {
            return reinterpret_cast<deft_ucx_channel_t*>(Channel::make(of(device), problem, room));
        },
        nullptr);
}

size_t address(const deft_ucx_channel_t* channel, const void** at) {
    return of(channel).address(at);
}

deft_ucx_result_t connect(deft_ucx_channel_t* channel, const void* address, size_t bytes) {
    return guarded([&] { return of(channel).connect(address, bytes); }, DEFT_UCX_FAILED,
                   DEFT_UCX_OK);
}

deft_ucx_result_t send(deft_ucx_channel_t* channel, const void* frame, const void* data,
                       uint64_t bytes, uint32_t key) {
    return guarded([&] { return of(channel).send(frame, data, bytes, key); }, DEFT_UCX_FAILED,
                   DEFT_UCX_AGAIN);
}

deft_ucx_result_t progress(deft_ucx_channel_t* channel, const deft_ucx_sink_t* sink, size_t most) {
    return guarded([&] { return of(channel).progress(*sink, most); }, DEFT_UCX_FAILED,
                   DEFT_UCX_AGAIN);
}

uint64_t acknowledged(const deft_ucx_channel_t* channel) {
    return of(channel).acknowledged();
}

uint64_t heard(const deft_ucx_channel_t* channel) {
    return of(channel).heard();
}

const char* failure(const deft_ucx_channel_t* channel) {
    return of(channel).failure();
}

void end(deft_ucx_channel_t* channel, int orderly) {
    if (const Call call; call) {
        of(channel).end(orderly != 0);
    }
}

void destroy(deft_ucx_channel_t* channel) {
    if (const Call call; call) {
        delete &of(channel);
    }
}

const deft_ucx_module_t kModule = {
    DEFT_UCX_ABI,
    sizeof(deft_ucx_module_t),
    ucp_get_version_string,
    open,
    map,
    unmap,
    make,
    address,
    connect,
    send,
    progress,
    acknowledged,
    heard,
    failure,
    end,
    destroy,
    devices,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const deft_ucx_module_t* deft_ucx_module() {
    return &kModule;
}
