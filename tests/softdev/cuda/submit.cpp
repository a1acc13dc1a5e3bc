// SPDX-License-Identifier: Apache-2.0
#include "tests/softdev/cuda/submit.h"

#include "tests/softdev/cuda/report.h"

namespace softdev {

CUresult submit(Call& call, const StreamPtr& stream, OpKind kind, std::shared_ptr<Task> task,
                std::string label, Accesses accesses) {
    (void)call;
    (void)accesses;
    enqueue(stream, kind, std::move(task), std::move(label));
    advance(stream);
    return CUDA_SUCCESS;
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
    return softdev::submit(call, stream, softdev::OpKind::task, task,
                           label != nullptr ? label : "operation", {accesses, n});
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
