// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/submit.h"

#include "softdev/cuda/capture.h"
#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"

namespace softdev {

CUresult may_submit(const Stream& stream) {
    if (stream.capture != nullptr) {
        return stream.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    }
    return legacy_implicit(stream, true);
}

CUresult submit(Call& call, const StreamPtr& stream, Work work, OpPtr* op) {
    (void)call;
    if (const CUresult refused = may_submit(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (!work.checked && work.accesses.count > 0) {
        const std::string place = " on " + stream->name();
        for (std::size_t i = 0; i < work.accesses.count; ++i) {
            const softdev_access_t& access = work.accesses.list[i];
            const CUresult result = check_range(reinterpret_cast<std::uintptr_t>(access.ptr),
                                                access.bytes, Use::kernel, work.label, place);
            if (result != CUDA_SUCCESS) {
                return result;
            }
        }
    }
    if (stream->capture != nullptr) {
        GraphNode node;
        node.op = work.kind;
        node.task = std::move(work.task);
        node.label = std::move(work.label);
        node.accesses.assign(work.accesses.list, work.accesses.list + work.accesses.count);
        add_node(*stream, std::move(node));
        return CUDA_SUCCESS;
    }
    order_stream(*stream);
    if (const CUresult result = check_history(*stream, work.label, work.accesses);
        result != CUDA_SUCCESS) {
        return result;
    }
    const OpPtr queued = enqueue(stream, work.kind, std::move(work.task), std::move(work.label));
    if (work.tells) {
        queued->follows = stream->clock;
    }
    note_history(*stream, queued->label, work.accesses);
    advance(stream);
    if (op != nullptr) {
        *op = queued;
    }
    return CUDA_SUCCESS;
}

void record_event(const StreamPtr& stream, const std::shared_ptr<Event>& event) {
    event->capture = nullptr;
    event->capture_front.clear();
    event->record = enqueue(stream, OpKind::marker, nullptr, "cuEventRecord");
    event->clock = stream->clock;
    event->untracked = stream->untracked;
    advance(stream);
}

void wait_event(const StreamPtr& stream, const Event& event) {
    const OpPtr op = enqueue(stream, OpKind::marker, nullptr, "cuStreamWaitEvent");
    depend(op, event.record);
    stream->clock.join(event.clock);
    if (event.untracked) {
        stream->untracked = true;
    }
    advance(stream);
}

namespace {

class UserTask : public Task {
public:
    UserTask(CUresult (*fn)(void*), void (*done)(void*), void* arg)
        : fn_(fn), done_(done), arg_(arg) {}
    UserTask(const UserTask&) = delete;
    UserTask& operator=(const UserTask&) = delete;
    ~UserTask() override {
        if (done_ != nullptr) {
            done_(arg_);
        }
    }
    CUresult run() override { return fn_(arg_); }

private:
    CUresult (*fn_)(void*);
    void (*done_)(void*);
    void* arg_;
};

}  // namespace
}  // namespace softdev

CUresult softdevStreamEnqueue(CUstream handle, const char* label, CUresult (*fn)(void*),
                              void (*done)(void*), void* arg, const softdev_access_t* accesses,
                              size_t n) {
    // Outlives the call and with it the lock: done() may call back.
    auto task = std::make_shared<softdev::UserTask>(fn, done, arg);
    if (fn == nullptr || (n > 0 && accesses == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    softdev::Work work;
    work.task = task;
    work.label = label != nullptr ? label : "operation";
    work.accesses = {accesses, n};
    return softdev::submit(call, stream, std::move(work));
}

CUdevice softdevStreamDevice(CUstream handle) {
    softdev::Call call(__func__, softdev::Call::Needs::driver);
    if (call.refused()) {
        return -1;
    }
    const softdev::Stream* stream = softdev::device().streams.find(handle);
    if (stream != nullptr) {
        return stream->context->device;
    }
    const auto& stack = softdev::thread_state().stack;
    const bool implicit =
        handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    return implicit && !stack.empty() ? stack.back()->device : -1;
}
