// SPDX-License-Identifier: Apache-2.0
// The hook of a call that moves data.
#pragma once

#include "base/collective_choice.h"
#include "shim/hooks/hook.h"
#include "shim/runtime/background_thread.h"
#include "shim/tuning/call_history.h"

namespace deft {

// begin() before the call is forwarded, end() after it returned. Both are cheap and never block;
// neither touches the call.
class CollectiveHook : public Hook {
public:
    CollectiveHook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept
        : Hook(function, comm, caller), comm_(comm) {}
    // One that was held until its group had ended.
    CollectiveHook(Function function, CommunicatorPin&& communicator, deft_nccl_comm_t comm,
                   const NcclTable* table) noexcept
        : Hook(function, std::move(communicator), table), comm_(comm) {}

    void begin(const Call& call, deft_cuda_stream_t stream) noexcept;
    void end(int result) noexcept;

    // NCCL's own function, with what it takes, between begin() and end(): as the ranks have agreed
    // that the call is carried out. Returns what the job is told.
    template <class Function>
    int forward(Function&& function) noexcept {
        if (refused_) {
            return DEFT_NCCL_SYSTEM_ERROR;
        }
        const TunedCall tuned(pick_.choice);
        const int result = function();
        record_.offer = tuned.offer();
        return result;
    }

    // A call that plans know (Series), from begin() to end(): a plan deals with it, or it is
    // forwarded. Returns what the job is told.
    int make(const Call& made, deft_cuda_stream_t stream) noexcept;
    // The same of one of several that were held in a group, which has ended. True: a plan has dealt
    // with it. False: it has to be forwarded in another group, which is told as any other.
    bool make_grouped(const Call& made, deft_cuda_stream_t stream, int& result) noexcept;

private:
    void look_at(deft_cuda_stream_t stream) noexcept;
    void tune(deft_cuda_stream_t stream) noexcept;
    bool record_start(BackgroundThread& background, deft_cuda_stream_t stream) noexcept;
    bool carry_out(const Call& call, deft_cuda_stream_t stream, int& result) noexcept;
    void tell_forwarded(deft_cuda_stream_t stream) noexcept;
    void number() noexcept;
    void keep_for_group_end(bool observed) noexcept;

    deft_nccl_comm_t comm_;
    tuning::Key key_;  // of one that may be tuned
    tuning::Pick pick_;
    bool tuned_ = false;                      // it may be
    bool refused_ = false;                    // the communicator has failed
    bool looked_at_ = false;                  // its stream: what follows is known
    bool captured_ = false;                   // into a graph
    bool recordable_ = false;                 // events can be recorded now
    bool grouped_ = false;                    // one of several calls of a group
    bool numbered_ = false;                   // it is
    bool small_ = false;                      // it may carry one that no plan takes
    BackgroundThread* background_ = nullptr;  // null: this call is not observed
    cuda::EventPool* pool_ = nullptr;
    CallRecord record_;
};

// is_numbered(), by what every rank knows of it.
bool may_be_numbered(const Call& call) noexcept;
// NCCL's own function for a call that plans know.
int forward_to(const NcclTable& table, const Call& call, deft_nccl_comm_t comm,
               deft_cuda_stream_t stream) noexcept;

// Before the outermost end: the numbered calls of the group get their ordinals, and the directors
// hear of them. Not earlier, because a group that is simulated makes none. Not ncclSuccess: a
// communicator has failed while it waited for the others, and that is what the job is told.
int count_group() noexcept;

// A group's work starts when its outermost end returns, so that is where its calls' end is noted. A
// group that failed made no calls, nor did one that was only simulated: `result` is an error then.
// One of nonblocking communicators is in progress, and nobody can tell when its calls begin.
void observe_group_end(int result) noexcept;

}  // namespace deft
