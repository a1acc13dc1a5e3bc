// SPDX-License-Identifier: Apache-2.0
// How lanes end: with the communicator, by an abort, or because their trials or their making do.
#include <time.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include "base/thread.h"
#include "shim/control/lane_set.h"

namespace deft::director {
namespace {

constexpr std::chrono::seconds kOpeningGrace{3};
constexpr std::chrono::seconds kAbortGrace{3};
constexpr int kHookGrace = 2000;  // of half a millisecond

void pause(long nanoseconds) noexcept {
    const timespec time{0, nanoseconds};
    ::nanosleep(&time, nullptr);
}

}  // namespace

void LaneSet::close_all(bool abort) noexcept {
    for (auto* const others : {&closing_, &new_lanes_}) {
        for (auto& lane : *others) {
            lanes_.push_back(std::move(lane));
        }
        others->clear();
    }
    drain_all(abort);  // all of them before close(), which waits for the whole device
    for (const auto& lane : lanes_) {
        lane->close();
    }
    for (const auto& lane : ended_) {
        lane->abort();  // one may have failed a moment ago
        lane->close();  // what an abort leaves
    }
    // Lanes stay too: async_error() may be asked at any time, and what is left of them is small.
    for (auto& lane : lanes_) {
        ended_.push_back(std::move(lane));
    }
    lanes_.clear();
    speeds_ = {};
}

// Until nothing of them is under way. Those that stand still, on whichever network, are aborted,
// and all of these before any is waited for.
void LaneSet::drain_all(bool abort) noexcept {
    std::array<bool, kMost> begun{};
    bool busy = true;
    while (busy) {
        busy = false;
        for (std::size_t i = 0; i < lanes_.size() && i < kMost; ++i) {
            if (!begun[i] && lanes_[i]->comm() != nullptr && (abort || lanes_[i]->stands_still())) {
                begun[i] = true;
                begin_abort(*lanes_[i]);
            }
            busy = busy || (!begun[i] && lanes_[i]->busy());
        }
        if (busy) {
            pause(200'000);
        }
    }
    await_aborts();
    for (const auto& lane : lanes_) {
        lane->drain();
    }
}

// A rank that is inside NCCL with a lane, connecting, is released by the lane's abort alone.
void LaneSet::drop_stage(std::uint64_t stage) noexcept {
    dropped_stage_.store(stage, std::memory_order_seq_cst);
    // Lanes are never freed while a communicator lives, so the pointer stays good.
    executor::Lane* const lane = opening_.load(std::memory_order_seq_cst);
    if (lane != nullptr && opening_stage_.load(std::memory_order_seq_cst) == stage) {
        lane->give_up();
        if (lane->comm() != nullptr && !leaving_off()) {
            begin_abort(*lane);
        }
    }
    if (opening_stage_.load(std::memory_order_seq_cst) == stage) {
        switch_.trials().drop();
        abort_untried();
    }
}

// Those that hooks may be launching the trials of, or have launched.
void LaneSet::abort_untried() noexcept {
    for (const auto& untried : untried_) {
        executor::Lane* const lane = untried.load(std::memory_order_seq_cst);
        if (lane != nullptr && lane->comm() != nullptr && !leaving_off()) {
            begin_abort(*lane);
        }
    }
}

void LaneSet::abort_failed(executor::Lane& lane) noexcept {
    if (!leaving_off()) {
        begin_abort(lane);
    }
}

// In this order: either open_one() sees it, or the lane is seen here. The lane itself is left to
// the thread that makes it.
void LaneSet::leave_off() noexcept {
    leaving_off_.store(true, std::memory_order_seq_cst);
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        lane->give_up();
    }
}

// A lane that is being made when the communicator ends is made first, if that takes no longer than
// this: torn down in the middle, it would look to the other ranks like a link that died. They all
// end their communicators now, so nobody is kept from making it.
void LaneSet::await_opening() const noexcept {
    const auto until = agreement::Clock::now() + kOpeningGrace;
    while (opening() && agreement::Clock::now() < until) {
        pause(1'000'000);
    }
}

// The background thread holds the director's lock while it makes a lane.
void LaneSet::abort_opening() noexcept {
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        lane->abort();
    }
}

// All ranks have launched them, so they are over soon, or never: that network stands still.
void LaneSet::end_trials() noexcept {
    const auto until = agreement::Clock::now() + kOpeningGrace;
    for (const auto& untried : untried_) {
        executor::Lane* const lane = untried.load(std::memory_order_seq_cst);
        while (lane != nullptr && lane->busy() && agreement::Clock::now() < until) {
            pause(1'000'000);
        }
    }
    for (const auto& untried : untried_) {
        executor::Lane* const lane = untried.load(std::memory_order_seq_cst);
        if (lane != nullptr && lane->busy()) {
            begin_abort(*lane);  // a later one waits behind it on the device
        }
    }
    await_aborts();
}

// An abort frees a lane's communicator, which a hook that is just using it must not see. One that
// stays inside waits in NCCL for a peer that is gone: only the abort of the lane releases it.
void LaneSet::await_hooks() const noexcept {
    for (int i = 0; i < kHookGrace && !switch_.unreferenced(); ++i) {
        pause(500'000);
    }
}

// ncclCommAbort tells the communicator's kernels to end, then frees memory, for which CUDA waits
// until the whole device is idle: for kernels of the other lanes and of the job's communicator too,
// which nobody may have told yet. So no abort may wait for another one to return before it is
// begun. (NCCL from 2.22 on does the same with the aborts of a group: a thread for each.)
void LaneSet::begin_abort(executor::Lane& lane) noexcept {
    struct Abort {
        LaneSet* lanes;
        executor::Lane* lane;
        static void run(const Abort& abort) noexcept {
            abort.lanes->await_hooks();
            abort.lane->abort();
            abort.lanes->aborts_.fetch_sub(1, std::memory_order_seq_cst);
        }
        static void* main(void* argument) {
            const std::unique_ptr<Abort> own(static_cast<Abort*>(argument));
            if (const cuda::Driver* const driver = cuda::Driver::found()) {
                const cuda::Relaxed relaxed(*driver);
                run(*own);
            } else {
                run(*own);
            }
            return nullptr;
        }
    };
    aborts_.fetch_add(1, std::memory_order_seq_cst);
    // Neither director nor lane is freed while the process lives.
    auto* const abort = new (std::nothrow) Abort{this, &lane};
    if (abort == nullptr || start_thread("deft-abort", 0, Abort::main, abort) != 0) {
        delete abort;
        Abort::run({this, &lane});
    }
}

void LaneSet::abort_all() noexcept {
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        // In this order: one that gets its communicator now is aborted by the background thread.
        lane->give_up();
        if (lane->comm() != nullptr) {
            begin_abort(*lane);
        }
    }
    abort_untried();
    for (const auto& published : published_) {
        executor::Lane* const lane = published.load(std::memory_order_seq_cst);
        if (lane != nullptr && lane->comm() != nullptr) {
            begin_abort(*lane);
        }
    }
}

// NCCL's own abort has waited for the device already, or the job has to abort more for that.
void LaneSet::await_aborts() const noexcept {
    const auto until = agreement::Clock::now() + kAbortGrace;
    while (aborting() && agreement::Clock::now() < until) {
        pause(200'000);
    }
}

}  // namespace deft::director
