// SPDX-License-Identifier: Apache-2.0
// The agreement thread of this process, its rendezvous, and all councils.
#pragma once

#include <sys/types.h>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "shim/agreement/core.h"
#include "shim/agreement/listener.h"

namespace deft::agreement {

class LeaderRole;

class Service {
public:
    static Service& process();

    static std::span<const std::byte, wire::kTrailerBytes> trailer_of(
        const deft_nccl_unique_id_t& id);

    // For write_trailer() and join(), which see.
    bool issue(deft_nccl_unique_id_t& id, Maker maker, std::string& why);
    Council* join(const deft_nccl_unique_id_t& id, int nranks, int rank, const Terms& terms);

    Council* inherit(Council& parent, std::uint64_t child, int nranks, int rank,
                     const Terms& terms);

    // Makes the thread look at what other threads ask for. Any thread.
    void wake() noexcept;

    // Connections that were dropped because they did not prove themselves.
    std::uint64_t strangers() const { return strangers_.load(std::memory_order_relaxed); }

private:
    // A unique id made here.
    struct Issued {
        wire::Nonce nonce{};
        pid_t maker = 0;  // a forked child is not the leader
        bool joined = false;
        bool over = false;
        LeaderRole* leader = nullptr;  // the thread's
    };
    // A connection whose hello has not come yet, or is early.
    struct Guest {
        Stream stream;
        wire::Hello hello;
        Clock::time_point since;
        Address from;
    };

    std::atomic<int> wake_fd_{-1};
    std::atomic<std::uint64_t> strangers_{0};

    Monitor monitor_;
    std::unique_ptr<Listener> listener_ DEFT_GUARDED_BY(monitor_);
    std::deque<Issued> issued_ DEFT_GUARDED_BY(monitor_);
    std::vector<Council*> fresh_ DEFT_GUARDED_BY(monitor_);
    // An id, and guests may be waiting for its leader.
    bool forgotten_ DEFT_GUARDED_BY(monitor_) = false;
    enum class Thread { None, Running, Failed };
    Thread thread_ DEFT_GUARDED_BY(monitor_) = Thread::None;
    bool stop_ DEFT_GUARDED_BY(monitor_) = false;
    bool finished_ DEFT_GUARDED_BY(monitor_) = false;
    std::atomic<pid_t> owner_{0};  // of the thread

    // ---- the thread's own
    std::vector<Council*> councils_;
    std::vector<Guest> guests_;  // no hello yet
    std::deque<Guest> early_;    // their leader has not joined yet
    PollSet set_;
    std::size_t listening_at_ = 0;
    std::size_t listening_ = 0;
    Clock::time_point accept_again_{};

    bool issue(wire::Trailer& trailer, std::string& why);
    bool start() DEFT_REQUIRES(monitor_);
    static void* thread_main(void* self) noexcept;
    static void at_exit() noexcept;
    void run();
    void take_fresh();
    void wait(Clock::time_point now);
    void accept_all(Clock::time_point now);
    void make_room();
    void read_guests(Clock::time_point now);
    bool read_guest(Guest& guest, Clock::time_point now);
    bool hear_guest(Guest& guest, bool stale);
    void admit(Guest&& guest, std::deque<Guest>& early);
    void look_after_early();
    bool leader_expected(const wire::Nonce& nonce);
    void end(Council* council);
    void give_up() noexcept;
};

}  // namespace deft::agreement
