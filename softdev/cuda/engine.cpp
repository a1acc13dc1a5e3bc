// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/engine.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/thread.h"

namespace softdev {

Device& device() {
    static Device* const value = new Device;
    return *value;
}

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::string Stream::name() const {
    switch (kind) {
        case StreamKind::legacy:
            return "legacy stream of device " + std::to_string(context->device);
        case StreamKind::per_thread:
            return "per-thread stream " + std::to_string(id);
        case StreamKind::created:
            return "stream " + std::to_string(id);
    }
    return "stream";
}

namespace {

// Slots are reused with their count, which is kept here while nobody owns them.
VectorClock& retired_counts() {
    static VectorClock* const value = new VectorClock;
    return *value;
}

}  // namespace

StreamPtr create_stream(Context& context, StreamKind kind, unsigned flags, int priority) {
    Device& d = device();
    auto stream = std::make_shared<Stream>();
    stream->context = &context;
    stream->kind = kind;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = d.next_stream_id++;
    if (d.free_slots.empty()) {
        stream->slot = d.slots++;
    } else {
        // Counts go on from the former owner: whatever that one did counts as ordered before. Only
        // a report can be lost by this, never a false one made.
        stream->slot = d.free_slots.back();
        d.free_slots.pop_back();
        stream->clock.join(retired_counts());
    }
    if (kind == StreamKind::legacy) {
        context.legacy = stream;
    } else {
        context.streams.push_back(stream);
    }
    if (kind == StreamKind::created) {
        stream->handle = static_cast<CUstream>(d.streams.add(stream));
    }
    return stream;
}

namespace {

void release_if_drained(const StreamPtr& stream) {
    if (!stream->destroyed || !stream->queue.empty()) {
        return;
    }
    auto& streams = stream->context->streams;
    auto it = std::find(streams.begin(), streams.end(), stream);
    if (it != streams.end()) {
        streams.erase(it);
        retired_counts().join(stream->clock);
        device().free_slots.push_back(stream->slot);
    }
    stream->wake.notify_all();
}

void run_worker(const StreamPtr& stream);

void wake_worker(const StreamPtr& stream) {
    if (!stream->has_worker) {
        stream->has_worker = true;
        std::thread(run_worker, stream).detach();
    } else {
        stream->wake.notify_one();
    }
}

bool runnable(const Stream& stream) {
    if (stream.queue.empty()) {
        return false;
    }
    const Op& op = *stream.queue.front();
    return op.waiting == 0 && op.kind != OpKind::marker && !op.running;
}

// Marks the operation complete; streams whose turn may have come are appended to `next`.
void finish(const OpPtr& op, std::vector<StreamPtr>& next) {
    op->complete = true;
    op->running = false;
    op->finished_ns = now_ns();
    op->stream->queue.pop_front();
    if (op->kind != OpKind::marker) {
        ++op->stream->context->tasks_done;
    }
    for (const OpPtr& dependent : op->dependents) {
        if (--dependent->waiting == 0) {
            next.push_back(dependent->stream);
        }
    }
    op->dependents.clear();
    op->keeps.clear();
    for (std::condition_variable* waiter : op->waiters) {
        waiter->notify_all();
    }
    op->waiters.clear();
    const StreamPtr stream = std::move(op->stream);
    release_if_drained(stream);
}

void advance_all(std::vector<StreamPtr> next) {
    while (!next.empty()) {
        const StreamPtr stream = std::move(next.back());
        next.pop_back();
        while (!stream->queue.empty() && stream->queue.front()->kind == OpKind::marker &&
               stream->queue.front()->waiting == 0) {
            finish(OpPtr(stream->queue.front()), next);
        }
        if (runnable(*stream)) {
            wake_worker(stream);
        }
    }
}

CUresult run_task(Op& op) {
    ThreadState& thread = thread_state();
    if (op.kind == OpKind::host_function) {
        thread.host_function = op.label.c_str();
    }
    CUresult result = CUDA_ERROR_UNKNOWN;
    try {
        result = op.task->run();
    } catch (...) {
        report("%s on %s threw a C++ exception", op.label.c_str(), op.stream->name().c_str());
    }
    thread.host_function = nullptr;
    return result;
}

void run_worker(const StreamPtr& stream) {
    // Else it has the name of the thread that made the stream, and its time is taken for that
    // one's.
    ::pthread_setname_np(::pthread_self(), "softcuda-stream");
    Device& d = device();
    thread_state().worker_of = stream->context->device;
    std::unique_lock<std::mutex> lock(d.mutex);
    for (;;) {
        stream->wake.wait(lock, [&] {
            return d.exiting || runnable(*stream) || (stream->destroyed && stream->queue.empty());
        });
        if (d.exiting || !runnable(*stream)) {
            return;
        }
        const OpPtr op = stream->queue.front();
        op->running = true;
        ++d.running;
        // What a host function sees finished, it can tell any other host thread.
        host_saw(op->follows);
        const bool dropped = stream->context->sticky != CUDA_SUCCESS;
        lock.unlock();
        const CUresult result = dropped ? CUDA_SUCCESS : run_task(*op);
        op->task
            .reset();  // done callbacks run here, before anybody can see the end of the operation
        lock.lock();
        --d.running;
        if (result != CUDA_SUCCESS && stream->context->sticky == CUDA_SUCCESS) {
            stream->context->sticky = result;
        }
        std::vector<StreamPtr> next{stream};
        finish(op, next);
        advance_all(std::move(next));
    }
}

}  // namespace

void destroy_stream(const StreamPtr& stream) {
    if (stream->handle != nullptr) {
        device().streams.remove(stream->handle);
    }
    leave_capture(*stream);
    stream->destroyed = true;
    release_if_drained(stream);
}

void depend(const OpPtr& op, const OpPtr& on) {
    if (on != nullptr && !on->complete) {
        on->dependents.push_back(op);
        ++op->waiting;
    }
}

void host_saw(const VectorClock& clock) {
    if (device().host_clock.join(clock)) {
        ++device().host_version;
    }
}

OpPtr enqueue(const StreamPtr& stream, OpKind kind, std::shared_ptr<Task> task, std::string label) {
    Context& context = *stream->context;
    auto op = std::make_shared<Op>();
    op->kind = kind;
    op->stream = stream;
    op->task = std::move(task);
    op->label = std::move(label);
    order_stream(*stream);
    if (stream->kind == StreamKind::legacy) {
        for (const StreamPtr& other : context.streams) {
            if (other->blocking()) {
                depend(op, other->last);
            }
        }
    } else if (stream->blocking()) {
        depend(op, context.legacy->last);
    }
    stream->clock.advance(stream->slot);
    stream->queue.push_back(op);
    stream->last = op;
    return op;
}

void order_stream(Stream& stream) {
    Device& d = device();
    if (stream.host_version != d.host_version) {
        stream.clock.join(d.host_clock);
        stream.host_version = d.host_version;
    }
    if (stream.kind == StreamKind::legacy) {
        for (const StreamPtr& other : stream.context->streams) {
            if (other->blocking()) {
                stream.clock.join(other->clock);
                if (other->untracked) {
                    stream.untracked = true;
                }
            }
        }
    } else if (stream.blocking()) {
        stream.clock.join(stream.context->legacy->clock);
        if (stream.context->legacy->untracked) {
            stream.untracked = true;
        }
    }
}

void advance(const StreamPtr& stream) {
    advance_all({stream});
}

}  // namespace softdev
