// SPDX-License-Identifier: Apache-2.0
#include "shim/control/lane_memory.h"

#include <algorithm>

#include "base/log.h"
#include "shim/cuda/event_pool.h"

namespace deft::director {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
// A lane of NCCL's takes 0.5 to 1 GiB beside a job in mid-training. Of one that was measured the
// next may take a quarter more.
constexpr std::size_t kExpected = 1024 * kMiB;
// A twentieth of the card is left to the job when a lane is made, as by shadow memory; lanes are
// given back when less than a fiftieth is left.
constexpr std::size_t kHeadroom = 20;
constexpr std::size_t kPressed = 50;
constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace

bool LaneMemory::ask(std::size_t& free, std::size_t& total) noexcept {
    const cuda::Execution* const driver = cuda::Execution::get();
    if (driver == nullptr || driver->MemGetInfo == nullptr) {
        return false;
    }
    if (context_ == nullptr) {
        context_ = cuda::primary_context(*driver->driver, device_);
    }
    const cuda::Relaxed relaxed(*driver->driver);  // the job may be capturing
    const cuda::Current current(*driver->driver, context_);
    return context_ != nullptr && current && driver->MemGetInfo(&free, &total) == cuda::kSuccess;
}

void LaneMemory::begin() noexcept {
    std::size_t total = 0;
    if (!ask(before_, total)) {
        before_ = 0;
    }
}

std::string LaneMemory::obstacle(std::size_t untried) {
    std::size_t free = 0;
    std::size_t total = 0;
    if (!ask(free, total)) {
        return {};
    }
    // A small card has small lanes.
    const std::size_t each =
        largest_ > 0 ? largest_ + largest_ / 4 : std::min(kExpected, total / kHeadroom);
    const std::size_t expected = each * (untried + 1);
    const std::size_t headroom = total / kHeadroom;
    if (free >= expected + headroom) {
        return {};
    }
    return "it may take " + std::to_string(expected / kMiB) + " MiB of device memory, of which " +
           std::to_string(free / kMiB) + " MiB are free and " + std::to_string(headroom / kMiB) +
           " MiB (5 % of the card) are left to the job";
}

void LaneMemory::note_made(std::size_t lanes) noexcept {
    std::size_t free = 0;
    std::size_t total = 0;
    if (before_ == 0 || !ask(free, total)) {
        return;
    }
    const std::size_t took = before_ - std::min(before_, free);
    largest_ = std::max(largest_, took / lanes);
    DEFT_INFO("%zu lane%s took %zu MiB of device memory; %zu of %zu MiB are free", lanes,
              lanes == 1 ? "" : "s", took / kMiB, free / kMiB, total / kMiB);
}

bool LaneMemory::pressed() noexcept {
    const std::int64_t now = cuda::host_now();
    if (now - asked_ns_ < kSecond) {
        return false;
    }
    asked_ns_ = now;
    std::size_t free = 0;
    std::size_t total = 0;
    return ask(free, total) && free < total / kPressed;
}

}  // namespace deft::director
