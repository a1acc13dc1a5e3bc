// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/thread.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "softdev/cuda/report.h"

namespace softdev {
namespace {

thread_local ThreadState* state = nullptr;

// What ends too late to be taken apart stays, and stays reachable for leak detectors.
void keep(ThreadState* late) {
    static auto* const mutex = new std::mutex;
    static auto* const kept = new std::vector<ThreadState*>;
    std::lock_guard<std::mutex> lock(*mutex);
    kept->push_back(late);
}

// Ends the thread's own streams. Not for the main thread: it ends with the process, whose exit
// handlers may still call.
struct ThreadEnd {
    bool armed = false;
    ~ThreadEnd() {
        if (!armed || state == nullptr) {
            return;
        }
        if (device().forked || device().exiting || syscall(SYS_gettid) == getpid()) {
            keep(state);
            return;
        }
        {
            std::lock_guard<std::mutex> lock(device().mutex);
            for (auto& [context, stream] : state->streams) {
                destroy_stream(stream);
            }
        }
        delete state;
        state = nullptr;
    }
};
thread_local ThreadEnd thread_end;

// A job may exit with work queued: workers start nothing more, and one that runs gets a moment to
// come back, so that it does not meet a process half torn down. Work that is stuck does not hold
// the process up.
void at_exit() {
    Device& d = device();
    if (d.forked) {
        return;
    }
    d.exiting = true;
    for (int i = 0; i < 20; ++i) {
        {
            std::unique_lock<std::mutex> lock(d.mutex, std::try_to_lock);
            if (lock.owns_lock() && d.running == 0) {
                return;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

void in_forked_child() {
    device().forked = true;
}

}  // namespace

ThreadState& thread_state() {
    static std::atomic<std::uint64_t> next_id{1};
    if (state == nullptr) {
        state = new ThreadState;
        state->id = next_id++;
        thread_end.armed = true;
    }
    return *state;
}

int current_device() {
    if (state == nullptr) {
        return -1;
    }
    const bool has = !state->stack.empty() && state->stack.back() != nullptr;
    return has ? state->stack.back()->device : state->worker_of;
}

CUresult initialise() {
    Device& d = device();
    if (d.forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    std::lock_guard<std::mutex> lock(d.mutex);
    if (d.initialised) {
        return CUDA_SUCCESS;
    }
    if (settings().devices == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    for (int i = 0; i < settings().devices; ++i) {
        auto context = std::make_shared<Context>();
        context->device = i;
        context->handle = static_cast<CUcontext>(d.contexts.add(context));
        d.primary.push_back(context);
    }
    std::atexit(at_exit);
    pthread_atfork(nullptr, nullptr, in_forked_child);
    d.initialised = true;
    return CUDA_SUCCESS;
}

Call::Call(const char* name, Needs needs) : name_(name) {
    Device& d = device();
    if (d.forked) {
        result_ = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    if (d.exiting) {
        result_ = CUDA_ERROR_DEINITIALIZED;
        return;
    }
    if (needs == Needs::nothing) {
        return;
    }
    if (!d.initialised) {
        result_ = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    ThreadState& thread = thread_state();
    if (thread.host_function != nullptr) {
        report("%s called from within host function %s: host functions must not call the CUDA API",
               name, thread.host_function);
        if (strict()) {
            result_ = CUDA_ERROR_NOT_PERMITTED;
            return;
        }
    }
    lock_ = std::unique_lock<std::mutex>(d.mutex);
    if (needs != Needs::context) {
        return;
    }
    if (thread.stack.empty() || thread.stack.back() == nullptr) {
        result_ = CUDA_ERROR_INVALID_CONTEXT;
        return;
    }
    context_ = thread.stack.back();
    if (!context_->active) {
        result_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (context_->sticky != CUDA_SUCCESS) {
        result_ = context_->sticky;
    }
}

Call::~Call() {
    if (lock_.owns_lock()) {
        lock_.unlock();
        if (state != nullptr && !state->trash.empty()) {
            const auto trash = std::move(state->trash);
            state->trash.clear();
        }
    }
}

StreamPtr Call::stream(CUstream handle) {
    if (handle == nullptr && thread_state().per_thread_default) {
        handle = CU_STREAM_PER_THREAD;
    }
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        return context_->legacy;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        StreamPtr& own = thread_state().streams[context_];
        if (own == nullptr || own->destroyed) {
            own = create_stream(*context_, StreamKind::per_thread, CU_STREAM_DEFAULT, 0);
        }
        return own;
    }
    StreamPtr found = device().streams.share(handle);
    if (found == nullptr) {
        const bool was = device().streams.state(handle) == HandleState::destroyed;
        report("%s: %p is %s", name_, static_cast<void*>(handle),
               was ? "a destroyed stream" : "no stream");
        result_ = was ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
    } else if (found->context->sticky != CUDA_SUCCESS) {
        result_ = found->context->sticky;
        return nullptr;
    }
    return found;
}

std::shared_ptr<Event> Call::event(CUevent handle) {
    std::shared_ptr<Event> found = device().events.share(handle);
    if (found == nullptr) {
        const bool was = device().events.state(handle) == HandleState::destroyed;
        report("%s: %p is %s", name_, static_cast<void*>(handle),
               was ? "a destroyed event" : "no event");
        result_ = CUDA_ERROR_INVALID_HANDLE;
    }
    return found;
}

}  // namespace softdev
