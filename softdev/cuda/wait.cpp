// SPDX-License-Identifier: Apache-2.0
// Host threads that wait.
#include <algorithm>
#include <chrono>

#include "softdev/cuda/engine.h"
#include "softdev/cuda/report.h"

namespace softdev {
namespace {

// The operations that hold the context up: those that run now.
std::string running_operations(const Context& context) {
    std::string text;
    auto add = [&](const Stream& stream) {
        if (!stream.queue.empty() && stream.queue.front()->running) {
            text +=
                (text.empty() ? "" : ", ") + stream.queue.front()->label + " on " + stream.name();
        }
    };
    add(*context.legacy);
    for (const StreamPtr& stream : context.streams) {
        add(*stream);
    }
    return text.empty() ? "nothing in this context" : text;
}

}  // namespace

CUresult wait_for(std::unique_lock<std::mutex>& lock, const OpPtr& op, const char* call) {
    if (op == nullptr || op->complete) {
        return CUDA_SUCCESS;
    }
    const StreamPtr stream = op->stream;
    Context& context = *stream->context;
    std::condition_variable done;
    const auto limit = static_cast<std::int64_t>(settings().deadline_s * 1e9);
    std::uint64_t progress = context.tasks_done;
    std::int64_t since = now_ns();
    while (!op->complete) {
        // system_clock on purpose: the steady clock's wait is not understood by gcc 12's thread
        // sanitizer. The deadline itself is counted on the steady clock.
        if (std::find(op->waiters.begin(), op->waiters.end(), &done) == op->waiters.end()) {
            op->waiters.push_back(&done);
        }
        const std::int64_t left = std::max<std::int64_t>(limit - (now_ns() - since), 0);
        done.wait_until(
            lock, std::chrono::system_clock::now() +
                      std::chrono::nanoseconds(std::min<std::int64_t>(left, 1000000000) + 1000000));
        if (op->complete) {
            break;
        }
        if (context.tasks_done != progress) {
            progress = context.tasks_done;
            since = now_ns();
        } else if (now_ns() - since >= limit) {
            op->waiters.erase(std::find(op->waiters.begin(), op->waiters.end(), &done));
            report(
                "%s is stuck: no operation has ended for %g s (SOFTDEV_DEADLINE); it waits for "
                "%s on %s; running: %s",
                call, settings().deadline_s, op->label.c_str(), stream->name().c_str(),
                running_operations(context).c_str());
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
    }
    return context.sticky;
}

bool stream_done(const Stream& stream) {
    if (!stream.idle()) {
        return false;
    }
    if (stream.kind == StreamKind::legacy) {
        for (const StreamPtr& other : stream.context->streams) {
            if (other->blocking() && !other->idle()) {
                return false;
            }
        }
    }
    return true;
}

CUresult synchronize_stream(std::unique_lock<std::mutex>& lock, const StreamPtr& stream,
                            const char* call) {
    // What is on the stream now counts, not what other threads add while this one waits.
    order_stream(*stream);
    const VectorClock seen = stream->clock;
    CUresult result = CUDA_SUCCESS;
    if (!stream_done(*stream)) {
        OpPtr last = stream->last;
        if (stream->kind == StreamKind::legacy) {
            last = enqueue(stream, OpKind::marker, nullptr, call);
            advance(stream);
        }
        result = wait_for(lock, last, call);
    }
    if (result == CUDA_SUCCESS) {
        host_saw(seen);
        stream->untracked = stream->untracked && !stream->idle();
    }
    return result;
}

CUresult synchronize_context(std::unique_lock<std::mutex>& lock, Context& context,
                             const char* call) {
    VectorClock seen = context.legacy->clock;
    std::vector<OpPtr> last{context.legacy->last};
    for (const StreamPtr& stream : context.streams) {
        seen.join(stream->clock);
        last.push_back(stream->last);
    }
    for (const OpPtr& op : last) {
        if (const CUresult result = wait_for(lock, op, call); result != CUDA_SUCCESS) {
            return result;
        }
    }
    host_saw(seen);
    context.legacy->untracked = context.legacy->untracked && !context.legacy->idle();
    for (const StreamPtr& stream : context.streams) {
        stream->untracked = stream->untracked && !stream->idle();
    }
    return CUDA_SUCCESS;
}

}  // namespace softdev
