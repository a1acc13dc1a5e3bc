// SPDX-License-Identifier: Apache-2.0
// How long lanes take, on the device's clock, for what calls give them under a plan.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shim/cuda/execution.h"
#include "shim/executor/script.h"

namespace deft::executor {

// What one of the script's actions gives to one lane, and how long the lane took for it.
struct LaneUse {
    std::uint32_t lane = 0;
    std::vector<std::uint64_t> pieces{};  // bytes of each, as plans count them
    double seconds = 0;                   // of all that were measured
    std::uint64_t measured = 0;
    // Which action, and the seconds of each of its first measured calls: all uses of an action have
    // times of the same calls, in the same order.
    std::size_t action = 0;
    std::vector<float> each{};
};

// Measures some calls, and the next ones when the background thread has taken them. A time has in
// it the copies of shards, and the wait for a rank that comes late to the call: all lanes that
// carry a part of the call wait for that alike.
//
// Hooks call begin(), enter() and end(), on one thread at a time; they allocate nothing and wait
// for nothing. One background thread calls take() and stop(). An event that the driver refuses
// ends the measuring, and nothing else.
class LaneTimes {
public:
    // The background thread may look once a second only.
    static constexpr std::size_t kRing = 32;    // calls
    static constexpr std::size_t kMost = 1024;  // of them in all
    static constexpr std::size_t kEach = 64;    // of one action, whose times are kept singly

    // Null: the driver refuses an event. The context is that of the lanes, and current.
    static std::unique_ptr<LaneTimes> create(const cuda::Execution& driver, cuda::Context context,
                                             const Script& script);
    ~LaneTimes();
    LaneTimes(const LaneTimes&) = delete;
    LaneTimes& operator=(const LaneTimes&) = delete;

    // The call that the script has this action for; its number among the script's actions.
    void begin(std::size_t action) noexcept;
    // The lane's stream has come to the first of the call's pieces.
    void enter(std::uint32_t lane, cuda::Stream stream) noexcept;
    // All pieces are launched. `streams`: of the lanes.
    void end(const std::vector<cuda::Stream>& streams) noexcept;

    // Adds calls that are over, and has others measured.
    void take() noexcept;
    // No call is measured any more. Any thread.
    void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }
    // By action, then lane; as the background thread has taken them.
    const std::vector<LaneUse>& uses() const noexcept { return uses_; }
    std::uint64_t calls() const noexcept { return calls_; }

private:
    struct Span {
        cuda::Event begin = nullptr;
        cuda::Event end = nullptr;
        bool used = false;
        float ms = 0;
    };
    struct Measured {
        std::atomic<bool> issued{false};  // the background thread's; else the hooks'
        std::size_t action = 0;
        std::vector<Span> spans;  // by lane
    };

    LaneTimes(const cuda::Execution& driver, cuda::Context context)
        : driver_(driver), context_(context) {}
    void list_uses(const Script& script);
    // False: the device has yet to be through.
    bool take(Measured& call) noexcept;

    const cuda::Execution& driver_;
    const cuda::Context context_;
    std::atomic<bool> stopped_{false};
    std::array<Measured, kRing> ring_;
    Measured* current_ = nullptr;  // hooks'; null: this call is not measured
    std::size_t written_ = 0;      // hooks'
    std::size_t taken_ = 0;        // the background thread's, as all below
    std::vector<LaneUse> uses_;
    std::vector<std::size_t> first_use_;  // by action, and one more: the end
    std::uint64_t calls_ = 0;
};

}  // namespace deft::executor
