// SPDX-License-Identifier: Apache-2.0
// Calls under a plan for layers that wait for their own sums: what they leave, and what becomes of
// it where the plan ends.
#include "base/log.h"
#include "shim/executor/executor.h"
#include "shim/executor/layer_sums.h"
#include "shim/executor/shadow.h"

namespace deft::executor {

// For who waits for the bucket's sum. In the last call of an iteration, or before it.
int Executor::note_sent(const Launch& step, std::uint32_t bucket) noexcept {
    if (step.ends_lane &&
        driver_.driver->EventRecord(sums_->summed(bucket, step.lane),
                                    lanes_[step.lane]->stream()) != cuda::kSuccess) {
        progress_.untold = true;
        return refused("event on a lane");
    }
    if (step.ends_bucket) {
        sums_->sent(bucket, running_ + 1);
    }
    return DEFT_NCCL_SUCCESS;
}

void Executor::note_held() {
    held_.assign(script_.shapes.size(), false);
    for (std::size_t i = 0; i < script_.actions.size(); ++i) {
        const Action& action = script_.actions[i];
        for (std::uint32_t l = action.launch; l < action.launch_end; ++l) {
            const std::uint32_t bucket = script_.regions[script_.launches[l].region].bucket;
            if (bucket != i % script_.shapes.size()) {
                held_[bucket] = true;
            }
        }
    }
}

// Who has called waits for the sum itself. Where that is not known, its stream waits for what is
// sent by now. It cannot wait for what later calls send: they are behind it on this stream. Nor can
// the rest be sent now: the other ranks send it in the order of the plan.
int Executor::leave(const Call& call, std::uint32_t bucket, cuda::Stream stream) noexcept {
    if (call.mark == script_.marks[bucket]) {
        leave_sum(*sums_, bucket, running_ + 1);
        return DEFT_NCCL_SUCCESS;
    }
    if (sums_->wait(bucket, running_ + 1, stream) == LayerSums::Wait::Waits) {
        return DEFT_NCCL_SUCCESS;
    }
    DEFT_WARN(
        "bucket %u has no mark of the companion on this rank alone, and later calls are to send "
        "some of it: the communicator fails",
        bucket);
    return failed("sum", DEFT_NCCL_INTERNAL_ERROR);
}

bool Executor::sums_unsent() const noexcept {
    return script_.layers && position_.load(std::memory_order_relaxed) > 0 && !broken();
}

void Executor::break_off(BreakReason reason) noexcept {
    if (sums_unsent()) {
        inside_.fetch_add(1);
        if (why() != BreakReason::Stopped) {
            send_rest();
        }
        inside_.fetch_sub(1);
    }
    end(reason);
}

// Of the buckets whose calls were made, what later calls of this iteration were to send: all ranks
// have come as far.
void Executor::send_rest() noexcept {
    const cuda::Current current(*driver_.driver, shadow_->context());
    const std::uint32_t made = position_.load(std::memory_order_relaxed);
    std::uint64_t direct = 0;
    int result = current ? DEFT_NCCL_SUCCESS : refused("context");
    progress_ = {};
    for (std::size_t p = made; p < script_.shapes.size(); ++p) {
        const Action& action = script_.action(running_, p);
        for (std::uint32_t i = action.launch; i < action.launch_end && result == DEFT_NCCL_SUCCESS;
             ++i) {
            const Launch& step = script_.launches[i];
            if (script_.regions[step.region].bucket < made) {
                result = launch(step, {}, direct);
            }
        }
    }
}

}  // namespace deft::executor
