// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace deft::net {

// Memory for a device, in pages of its own: where the kernel does not copy pinned pages at fork,
// libibverbs keeps registered ones from a child, and whatever else is in them.
class Pages {
public:
    Pages() = default;
    // data() is NULL where there is no memory.
    explicit Pages(std::size_t bytes) {
        void* const at =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at != MAP_FAILED) {
            data_ = static_cast<std::byte*>(at);
            size_ = bytes;
        }
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    Pages& operator=(Pages&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Pages() {
        if (data_ != nullptr) {
            ::munmap(data_, size_);
        }
    }
    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace deft::net
