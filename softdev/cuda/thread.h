// SPDX-License-Identifier: Apache-2.0
// What belongs to one thread: its context stack, per-thread streams and capture mode; and the
// checks every API call starts with.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "softdev/cuda/engine.h"

namespace softdev {

struct ThreadState {
    std::vector<Context*> stack;  ///< contexts live as long as the process
    std::map<Context*, StreamPtr> streams;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const char* host_function = nullptr;  ///< label of the one that runs on this thread
    int worker_of = -1;                   ///< device whose operations this thread runs
    std::uint64_t id = 0;
    bool per_thread_default = false;  ///< NULL means the per-thread stream: a _ptsz or _ptds call
    /// Things that must not end while the lock is held, because what they end with may call back.
    std::vector<std::shared_ptr<void>> trash;
};

ThreadState& thread_state();

/// The thread's device, -1 for none; makes no state for the thread.
int current_device();

/// One API call: initialised, not in a host function, the lock held, the current context known.
class Call {
public:
    enum class Needs { nothing, driver, context };

    explicit Call(const char* name, Needs needs = Needs::context);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    bool refused() const { return result_ != CUDA_SUCCESS; }
    CUresult result() const { return result_; }
    const char* name() const { return name_; }
    Context& context() const { return *context_; }
    std::unique_lock<std::mutex>& lock() { return lock_; }

    /// The stream of a handle (NULL: legacy), or nullptr with result() set and misuse reported.
    StreamPtr stream(CUstream handle);
    std::shared_ptr<Event> event(CUevent handle);
    CUresult fail(CUresult result) { return result_ = result; }

private:
    const char* name_;
    Context* context_ = nullptr;
    CUresult result_ = CUDA_SUCCESS;
    std::unique_lock<std::mutex> lock_;
};

/// Ends the call when its opening checks refuse it.
#define SOFTDEV_CALL(call, ...)                  \
    softdev::Call call(__func__, ##__VA_ARGS__); \
    if (call.refused()) {                        \
        return call.result();                    \
    }

CUresult initialise();

}  // namespace softdev
