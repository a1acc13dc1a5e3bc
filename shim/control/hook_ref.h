// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace deft::director {

// A hook's reference to whatever it may have found in force: while one lives, no executor and no
// lane is freed. docs/plan-switch.md gives the reason for the orders.
class HookRef {
public:
    explicit HookRef(std::atomic<std::uint32_t>& count) noexcept : count_(count) {
        count_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~HookRef() { count_.fetch_sub(1, std::memory_order_release); }
    HookRef(const HookRef&) = delete;

private:
    std::atomic<std::uint32_t>& count_;
};

}  // namespace deft::director
