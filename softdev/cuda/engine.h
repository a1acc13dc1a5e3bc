// SPDX-License-Identifier: Apache-2.0
// Streams, operations and their order. One lock guards the whole device; a stream's worker thread
// holds it only between operations, never while one runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softdev/cuda/api.h"
#include "softdev/cuda/clock.h"
#include "softdev/cuda/handles.h"

namespace softdev {

struct Capture;
struct Context;
struct Event;
struct GraphNode;
struct Stream;

/// What an operation does. Graphs and queued operations share it; its destructor is the end of its
/// life.
class Task {
public:
    virtual ~Task() = default;
    virtual CUresult run() = 0;
};

template <typename F>
class FunctionTask : public Task {
public:
    explicit FunctionTask(F f) : f_(std::move(f)) {}
    CUresult run() override { return f_(); }

private:
    F f_;
};

template <typename F>
std::shared_ptr<Task> make_task(F f) {
    return std::make_shared<FunctionTask<F>>(std::move(f));
}

enum class OpKind {
    marker,         ///< done as soon as it is its turn: needs no thread
    task,           ///< runs on the worker thread
    host_function,  ///< the same, and must not call the API
};

struct Op {
    OpKind kind = OpKind::marker;
    bool complete = false;
    bool running = false;
    unsigned waiting = 0;  ///< operations of other streams that must finish first
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Task> task;
    std::string label;
    VectorClock follows;  ///< what host threads may know to be over once this runs: of host
                          ///< functions and value writes
    std::int64_t finished_ns = 0;
    std::vector<std::shared_ptr<Op>> dependents;
    std::vector<std::shared_ptr<void>> keeps;  ///< let go, under the lock, when it is complete
    std::vector<std::condition_variable*> waiters;
};
using OpPtr = std::shared_ptr<Op>;

enum class StreamKind { legacy, per_thread, created };

struct Stream : std::enable_shared_from_this<Stream> {
    Context* context = nullptr;
    StreamKind kind = StreamKind::created;
    unsigned flags = 0;
    int priority = 0;
    std::uint64_t id = 0;
    CUstream handle = nullptr;
    bool destroyed = false;
    bool has_worker = false;

    std::deque<OpPtr> queue;
    OpPtr last;
    std::condition_variable wake;

    std::size_t slot = 0;
    VectorClock clock;
    std::uint64_t host_version = 0;  ///< of the host clock that is already in clock
    bool untracked = false;          ///< it waits for values in memory: see history.h

    std::shared_ptr<Capture> capture;
    std::vector<GraphNode*> capture_front;  ///< nodes that the next captured operation follows
    GraphNode* capture_last = nullptr;  ///< what it captured last: its capture's origin has to join

    bool blocking() const {
        return kind != StreamKind::legacy && (flags & CU_STREAM_NON_BLOCKING) == 0;
    }
    bool idle() const { return last == nullptr || last->complete; }
    std::string name() const;
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    OpPtr record;  ///< the latest
    VectorClock clock;
    bool untracked = false;            ///< its stream was
    std::shared_ptr<Capture> capture;  ///< set when the latest record was captured
    std::vector<GraphNode*> capture_front;
};

struct Context {
    CUcontext handle = nullptr;
    int device = 0;
    unsigned flags = 0;
    bool primary = true;
    bool active = false;
    unsigned references = 0;
    CUresult sticky = CUDA_SUCCESS;
    std::map<int, std::size_t> limits;  ///< as set; they limit nothing here
    StreamPtr legacy;
    std::vector<StreamPtr> streams;  ///< live, or destroyed with work left; without the legacy one
    std::uint64_t tasks_done = 0;    ///< tells a stuck wait from a long one
};

/// Everything the device knows. Never destroyed: worker threads and the job's own exit handlers may
/// outlive main().
struct Device {
    std::mutex mutex;
    std::atomic<bool> initialised{false};
    std::atomic<bool> forked{false};
    std::atomic<bool> exiting{false};

    std::vector<std::shared_ptr<Context>> primary;  ///< one per device
    HandleTable<Context, HandleKind::context> contexts;
    HandleTable<Stream, HandleKind::stream> streams;
    HandleTable<Event, HandleKind::event> events;

    VectorClock host_clock;  ///< what some host thread has seen finished
    std::uint64_t host_version = 1;
    std::size_t slots = 0;
    std::vector<std::size_t> free_slots;
    std::uint64_t next_stream_id = 1;
    unsigned running = 0;
};

Device& device();

std::int64_t now_ns();

StreamPtr create_stream(Context& context, StreamKind kind, unsigned flags, int priority);
/// The handle dies now, the stream when its work is done.
void destroy_stream(const StreamPtr& stream);

/// Brings the stream's clock up to what its next operation will follow.
void order_stream(Stream& stream);
/// Puts an operation on a stream behind what CUDA says it follows. The lock is held.
OpPtr enqueue(const StreamPtr& stream, OpKind kind, std::shared_ptr<Task> task, std::string label);
/// The operation does not start before `on` is complete.
void depend(const OpPtr& op, const OpPtr& on);
/// Starts what can start; call it after enqueue() and the depend() calls that follow it.
void advance(const StreamPtr& stream);

/// A host thread has seen that everything in the clock is over.
void host_saw(const VectorClock& clock);

/// Blocks until the operation is complete. No progress within the deadline: a report and
/// CUDA_ERROR_LAUNCH_TIMEOUT.
CUresult wait_for(std::unique_lock<std::mutex>& lock, const OpPtr& op, const char* call);
CUresult synchronize_stream(std::unique_lock<std::mutex>& lock, const StreamPtr& stream,
                            const char* call);
CUresult synchronize_context(std::unique_lock<std::mutex>& lock, Context& context,
                             const char* call);
bool stream_done(const Stream& stream);

}  // namespace softdev
