// SPDX-License-Identifier: Apache-2.0
// A device of the UCX module, its memory, and channels from it to peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "deft/abi/ucx_module.h"
#include "plugin/core/region.h"

namespace deft::net {

// Memory that its bulk data comes from. Lives as long as the process.
class UcxDevice final : public Domain, public std::enable_shared_from_this<UcxDevice> {
public:
    // `net_devices` as deft_ucx_module_t::open. NULL and the cause. Milliseconds.
    static std::shared_ptr<UcxDevice> open(const deft_ucx_module_t& module,
                                           const std::string& net_devices, std::string& problem);

    const deft_ucx_module_t& module() const { return module_; }
    deft_ucx_device_t* get() const { return device_; }
    const std::string& name() const { return name_; }

protected:
    std::unique_ptr<Registration> enter(const Memory& memory, std::string& problem) override;

private:
    UcxDevice(const deft_ucx_module_t& module, deft_ucx_device_t* device, std::string name)
        : module_(module), device_(device), name_(std::move(name)) {}

    const deft_ucx_module_t& module_;
    deft_ucx_device_t* const device_;
    const std::string name_;
};

// One thread at a time, but for the calls that take a second: those run on a thread of their own
// (blocking_calls.h), and nobody else uses the channel meanwhile.
class UcxChannel : public std::enable_shared_from_this<UcxChannel> {
public:
    // NULL and the cause. Milliseconds.
    static std::shared_ptr<UcxChannel> make(std::shared_ptr<UcxDevice> device,
                                            std::string& problem);
    ~UcxChannel();
    UcxChannel(const UcxChannel&) = delete;
    UcxChannel& operator=(const UcxChannel&) = delete;

    UcxDevice& device() const { return *device_; }
    const deft_ucx_module_t& module() const { return device_->module(); }
    deft_ucx_channel_t* get() const { return channel_; }

    // Begins the end, once; nothing but progress() may be called from then on, and that once the
    // channel is gone. `orderly` as deft_ucx_module_t::end.
    void end(bool orderly = false);
    // Nothing of it lands any more, and no memory is read for it.
    bool gone() const { return gone_.load(std::memory_order_acquire); }

private:
    UcxChannel(std::shared_ptr<UcxDevice> device, deft_ucx_channel_t* channel)
        : device_(std::move(device)), channel_(channel) {}

    const std::shared_ptr<UcxDevice> device_;
    deft_ucx_channel_t* const channel_;
    bool ending_ = false;
    std::atomic<bool> gone_{false};
};

}  // namespace deft::net
