// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace deft::director {

// While one lives, nothing that the thread may have found in force is freed.
class Inside {
public:
    explicit Inside(std::atomic<std::uint32_t>& count) : count_(count) {
        count_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Inside() { count_.fetch_sub(1, std::memory_order_release); }
    Inside(const Inside&) = delete;

private:
    std::atomic<std::uint32_t>& count_;
};

}  // namespace deft::director
