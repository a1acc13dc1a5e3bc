// SPDX-License-Identifier: Apache-2.0
// A thread that reads a receive buffer as a GPU does with NCCL's protocol LL128: it waits for the
// flag of a line, then takes what stands before it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

namespace deft::net::testing {

class FlagReader {
public:
    static constexpr std::size_t kLine =
        128 / sizeof(std::uint64_t);  // words, the last is the flag

    // Of messages whose words are all 1, then all 2, and so on up to `rounds`, or to the reader's
    // own end.
    FlagReader(std::size_t bytes, std::uint64_t rounds)
        : words_(bytes / sizeof(std::uint64_t)),
          buffer_(static_cast<std::uint64_t*>(std::aligned_alloc(128, bytes)), &std::free) {
        std::fill_n(buffer_.get(), words_, 0);
        thread_ = std::thread([this, rounds] { read(rounds); });
    }
    ~FlagReader() {
        over_.store(true, std::memory_order_relaxed);
        thread_.join();
    }
    FlagReader(const FlagReader&) = delete;
    FlagReader& operator=(const FlagReader&) = delete;

    std::byte* data() { return reinterpret_cast<std::byte*>(buffer_.get()); }
    // False: a flag has not come, and never will.
    bool wait(std::uint64_t round) const {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (taken_.load(std::memory_order_acquire) < round) {
            if (std::chrono::steady_clock::now() > deadline) {
                return false;
            }
            std::this_thread::yield();
        }
        return true;
    }
    // Words that had not come with their flag; to be asked once all is taken.
    std::uint64_t early() const { return early_.load(std::memory_order_acquire); }

private:
    std::uint64_t word(std::size_t at) const {
        return std::atomic_ref(buffer_.get()[at]).load(std::memory_order_acquire);
    }
    void read(std::uint64_t rounds) {
        for (std::uint64_t round = 1; round <= rounds; ++round) {
            for (std::size_t line = 0; line < words_; line += kLine) {
                while (word(line + kLine - 1) != round) {
                    if (over_.load(std::memory_order_relaxed)) {
                        return;
                    }
                }
                for (std::size_t at = line; at < line + kLine - 1; ++at) {
                    early_.fetch_add(word(at) == round ? 0 : 1, std::memory_order_relaxed);
                }
            }
            taken_.store(round, std::memory_order_release);
        }
    }

    std::size_t words_;
    std::unique_ptr<std::uint64_t[], decltype(&std::free)> buffer_;
    std::atomic<std::uint64_t> taken_ = 0;
    std::atomic<std::uint64_t> early_ = 0;
    std::atomic<bool> over_ = false;
    std::thread thread_;
};

}  // namespace deft::net::testing
