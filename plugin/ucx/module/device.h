// SPDX-License-Identifier: Apache-2.0
// A UCP context, and memory that is mapped in it.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace deft::ucx {

// The text goes to the caller's buffer.
void say(char* problem, std::size_t room, const char* what, const char* why);

// Any thread. Never closed: channels of a process that exits may still be in use.
class Device {
public:
    // NULL and the cause.
    static Device* open(const char* net_devices, char* problem, std::size_t room);

    ucp_context_h context() const { return context_; }
    // As deft_ucx_module_t::devices.
    std::size_t devices(char* text, std::size_t room) const;
    bool without_network() const;
    // A number that is not 0; 0 and the cause.
    std::uint32_t map(const void* data, std::size_t bytes, char* problem, std::size_t room);
    // Waits for what is still written or read there by channels that are ending.
    void unmap(std::uint32_t key);
    // A request begins or ends that goes by this key.
    void use(std::uint32_t key, int more) {
        uses_[key % kMost].fetch_add(more, std::memory_order_acq_rel);
    }
    // NULL: no such key.
    ucp_mem_h memory(std::uint32_t key) const {
        return key < memory_.size() ? memory_[key].load(std::memory_order_acquire) : nullptr;
    }

private:
    explicit Device(ucp_context_h context) : context_(context) {}

    static constexpr std::size_t kMost = 1 << 16;  // pieces of memory, of NCCL some hundreds
    const ucp_context_h context_;
    std::mutex mutex_;  // of whoever changes the table
    std::uint32_t next_ = 1;
    std::array<std::atomic<ucp_mem_h>, kMost> memory_{};
    std::array<std::atomic<int>, kMost> uses_{};
};

}  // namespace deft::ucx
