// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/device.h"

#include <array>
#include <utility>

#include "base/fork_guard.h"
#include "plugin/core/blocking_calls.h"

namespace deft::net {
namespace {

using Problem = std::array<char, 256>;

class UcxRegistration final : public Registration {
public:
    UcxRegistration(std::shared_ptr<const UcxDevice> device, std::uint32_t key)
        : device_(std::move(device)) {
        local_key = remote_key = key;
    }
    ~UcxRegistration() override {
        if (!ForkGuard::process().in_child()) {
            device_->module().unmap(device_->get(), local_key);
        }
    }
    UcxRegistration(const UcxRegistration&) = delete;
    UcxRegistration& operator=(const UcxRegistration&) = delete;

private:
    const std::shared_ptr<const UcxDevice> device_;
};

}  // namespace

std::shared_ptr<UcxDevice> UcxDevice::open(const deft_ucx_module_t& module,
                                           const std::string& net_devices, std::string& problem) {
    Problem why{};
    deft_ucx_device_t* const device = module.open(net_devices.c_str(), why.data(), why.size());
    if (device == nullptr) {
        problem = why.data();
        return nullptr;
    }
    return std::shared_ptr<UcxDevice>(new UcxDevice(module, device, "UCX " + net_devices));
}

std::unique_ptr<Registration> UcxDevice::enter(const Memory& memory, std::string& problem) {
    Problem why{};
    const std::uint32_t key =
        memory.kind == Memory::Kind::Host
            ? module_.map(device_, memory.data, memory.size, why.data(), why.size())
            : 0;
    if (key == 0) {
        problem = memory.kind == Memory::Kind::Host ? why.data() : "UCX: host memory alone";
        return nullptr;
    }
    return std::make_unique<UcxRegistration>(shared_from_this(), key);
}

std::shared_ptr<UcxChannel> UcxChannel::make(std::shared_ptr<UcxDevice> device,
                                             std::string& problem) {
    Problem why{};
    deft_ucx_channel_t* const channel =
        device->module().make(device->get(), why.data(), why.size());
    if (channel == nullptr) {
        problem = why.data();
        return nullptr;
    }
    return std::shared_ptr<UcxChannel>(new UcxChannel(std::move(device), channel));
}

// The last who holds it: the thread that has ended it, or one that has seen that.
UcxChannel::~UcxChannel() {
    if (gone() && !ForkGuard::process().in_child()) {
        module().destroy(channel_);
    }
}

void UcxChannel::end(bool orderly) {
    if (std::exchange(ending_, true)) {
        return;
    }
    // In a forked child it stays: what it holds is the parent's.
    calls_that_end(device_->name()).run([self = shared_from_this(), orderly] {
        self->module().end(self->channel_, orderly ? 1 : 0);
        self->gone_.store(true, std::memory_order_release);
    });
}

}  // namespace deft::net
