// SPDX-License-Identifier: Apache-2.0
// A thread of the plugin's that goes through ends given to it: what helpers
// (core/io_threads.h) and the idle thread (core/idle_progress.h) have in common.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "plugin/core/connection_end.h"

namespace deft::net {

// Started with its first end, ends after its last. Never destroyed: the thread may be inside
// while the process exits. A forked child goes without.
class ProgressThread {
public:
    explicit ProgressThread(const char* name) : name_(name) {}
    ProgressThread(const ProgressThread&) = delete;
    ProgressThread& operator=(const ProgressThread&) = delete;

    // False if no thread could be started. Waits for no round. Any thread.
    bool add(ConnectionEnd& end);
    // The same for one that nobody else has any more, until it is over. Keeps it only if true.
    bool adopt(std::unique_ptr<ConnectionEnd>& end);
    // Afterwards the end belongs to the caller alone. Waits for at most one round. Any thread.
    void remove(ConnectionEnd& end);
    // Takes a system call only if the thread sleeps. Any thread.
    void wake();

protected:
    struct Entry {
        ConnectionEnd* end;
        std::uint64_t moved;
        Nanos wanted_since = 0;
        bool stirs = false;
        std::unique_ptr<ConnectionEnd> own = nullptr;
    };

    ~ProgressThread() = default;
    // Goes round again and again until it is over.
    virtual void run(std::uint64_t generation) = 0;

    // Visits every entry; false if this thread's time is over.
    template <class Visit>
    bool go_round(std::uint64_t generation, Visit&& visit) {
        while (waiting_.load() != 0) {
            ::sched_yield();
        }
        const MutexLock lock(mutex_);
        if (!take_in(generation)) {
            return false;
        }
        for (Entry& entry : entries_) {
            visit(entry);
        }
        return true;
    }
    // One that was adopted and is over, to be destroyed without the list; NULL: there is none.
    std::unique_ptr<ConnectionEnd> take_out();
    // Drives the end; true if something moved since it was last driven.
    static bool drive(Entry& entry, Nanos now) DEFT_REQUIRES(entry.end->lock);

    // To be announced before the last look at what there is to do, so that whoever brings something
    // new either wakes this thread or is seen.
    void announce_sleep();
    void sleep(Nanos time);                                // at most; under a second
    bool end_sleep() { return asleep_.exchange(0) == 0; }  // true if woken

private:
    struct Start {
        ProgressThread* thread;
        std::uint64_t generation;
    };
    // The thread keeps the list while it goes through it: who wants it says so first.
    class DEFT_SCOPED_CAPABILITY ListLock {
    public:
        explicit ListLock(ProgressThread& thread) DEFT_ACQUIRE(thread.mutex_);
        ~ListLock() DEFT_RELEASE() { thread_.mutex_.unlock(); }
        ListLock(const ListLock&) = delete;

    private:
        ProgressThread& thread_;
    };
    bool enter(Entry& entry);
    bool start() DEFT_REQUIRES(gate_);
    bool take_in(std::uint64_t generation) DEFT_REQUIRES(mutex_);
    bool end_if_last() DEFT_REQUIRES(mutex_);
    static void* main(void* argument);

    const char* const name_;
    Mutex mutex_;
    std::vector<Entry> entries_ DEFT_GUARDED_BY(mutex_);
    std::atomic<int> waiting_{0};  // for mutex_, of others than the thread
    // Of those that the next round takes in; taken after mutex_ by who needs both, and never for
    // longer than it takes to look: NCCL's thread waits for it.
    Mutex gate_;
    std::vector<Entry> new_ DEFT_GUARDED_BY(gate_);
    bool runs_ DEFT_GUARDED_BY(gate_) = false;  // a thread does while there are any, new ones too
    std::uint64_t generation_ DEFT_GUARDED_BY(gate_) = 0;  // of that thread
    std::atomic<std::uint32_t> asleep_{0};
};

// The end's thread, if it has one, lets go of it.
void stop_progress(ConnectionEnd& end);

}  // namespace deft::net
