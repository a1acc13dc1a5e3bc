// SPDX-License-Identifier: Apache-2.0
// The agreement thread of this process, its rendezvous, and all councils.
#pragma once

#include <sys/types.h>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/agreement/core.h"
#include "shim/agreement/link.h"
#include "shim/agreement/listener.h"
#include "shim/agreement/member_role.h"
#include "shim/agreement/uplink.h"

namespace deft::agreement {

class LeaderRole;

class Service final : public LinkOwner, public Ways, private Watcher {
public:
    static Service& process();

    static std::span<const std::byte, wire::kTrailerBytes> trailer_of(
        const deft_nccl_unique_id_t& id);

    // For write_trailer() and join(), which see.
    bool issue(deft_nccl_unique_id_t& id, Maker maker, std::string& why);
    CouncilRef join(const deft_nccl_unique_id_t& id, int nranks, int rank, const Terms& terms);

    CouncilRef inherit(Council& parent, std::uint64_t child, int nranks, int rank,
                       const Terms& terms);

    // Makes the thread look at what other threads ask for. Any thread.
    void wake() noexcept;

    Uplink& way_to(const wire::Trailer& trailer) override;
    bool take(Link& link, const wire::Header& header, std::span<const std::byte> payload) override;
    void ended(Link& link, const std::string& how) override;

    // Whoever came with another shared secret, as a reason why a rank is missing: "; a connection
    // from ..."; "" if nobody did. The thread's.
    const std::string& suspicion() const { return suspicion_; }

    // So many hosts may be connected to this process; more of them are sent to others. For tests.
    void keep_direct(std::size_t hosts) { direct_.store(hosts, std::memory_order_relaxed); }

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
    // A connection that has come in.
    struct Guest {
        std::unique_ptr<Link> link;
        Clock::time_point since;
        Address from;
        std::uint64_t process = 0;  // as it has said itself, else of the first rank
        // Beyond some hundreds of hosts some relay for others.
        bool asked = false;                  // to
        std::optional<wire::Trailer> offer;  // and does, there
        std::set<std::uint64_t> behind;      // processes that were sent to it
        std::uint64_t moved_to = 0;          // was sent to that process
    };
    // A hello whose leader has not joined yet.
    struct Early {
        Link* link;
        wire::Hello hello;
        bool own;           // the link is to the rank's process
        bool left = false;  // and has ended its communicator meanwhile
    };
    struct Door final : Watcher {
        Door(Service& service, int fd) : service(service), fd(fd) {}
        void ready(std::uint32_t /*events*/, Clock::time_point now) override {
            service.accept_all(fd, now);
        }
        Service& service;
        int fd;
    };

    std::atomic<int> wake_fd_{-1};
    std::atomic<std::uint64_t> strangers_{0};
    std::atomic<std::size_t> direct_{256};

    Monitor monitor_;
    std::unique_ptr<Listener> listener_ DEFT_GUARDED_BY(monitor_);
    std::deque<Issued> issued_ DEFT_GUARDED_BY(monitor_);
    std::vector<CouncilRef> fresh_ DEFT_GUARDED_BY(monitor_);
    // An id, and guests may be waiting for its leader.
    bool forgotten_ DEFT_GUARDED_BY(monitor_) = false;
    enum class Thread { None, Running, Failed };
    Thread thread_ DEFT_GUARDED_BY(monitor_) = Thread::None;
    bool stop_ DEFT_GUARDED_BY(monitor_) = false;
    Address root_ DEFT_GUARDED_BY(monitor_);  // NCCL's bootstrap of the last id that was joined
    bool finished_ DEFT_GUARDED_BY(monitor_) = false;
    std::atomic<pid_t> owner_{0};  // of the thread

    // ---- the thread's own
    std::vector<CouncilRef> councils_;
    Links links_;
    std::vector<std::unique_ptr<Guest>> guests_;                      // no hello yet
    std::unordered_map<Link*, std::unique_ptr<Guest>> known_;         // have said a proper one
    std::map<std::pair<std::uint64_t, std::uint32_t>, Early> early_;  // by council and rank
    std::unordered_map<std::uint64_t, LeaderRole*> leaders_;          // by council
    std::map<std::uint64_t, std::unique_ptr<Uplink>> uplinks_;        // by the leader's process
    std::deque<Door> doors_;
    Clock::time_point accept_again_ = kNever;
    std::string suspicion_;
    Clock::time_point awake_at_{};  // when the last wait was over

    bool issue(wire::Trailer& trailer, const Address& reached_by, std::string& why);
    bool start() DEFT_REQUIRES(monitor_);
    static void* thread_main(void* self) noexcept;
    static void at_exit() noexcept;
    void run();
    void take_fresh();
    void ready(std::uint32_t events, Clock::time_point now) override;  // something to look at
    void wait();
    void overslept(Clock::duration slept);
    void open_doors(Clock::time_point now);
    void accept_all(int door, Clock::time_point now);
    void pause_accepting(Clock::time_point now);
    void make_room();
    void send_stale_away(Clock::time_point now);
    bool hear_hello(Link& link, const wire::Header& header, std::span<const std::byte> payload);
    Guest* guest_of(Link& link);
    void meet(Guest& guest);
    bool take_offer(Link& link, std::span<const std::byte> payload);
    void ask_to_serve();
    void relay_ended(std::uint64_t process);
    void spread();
    Guest* relay_with_room();
    void prove(Link& link);
    bool in_use(Link& link) const;
    bool admit(Early&& early, LeaderRole* leader);
    void end(Council& council);
    void give_up() noexcept;
};

}  // namespace deft::agreement
