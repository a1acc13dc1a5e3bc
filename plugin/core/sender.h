// SPDX-License-Identifier: Apache-2.0
// The sending half of a connection: cuts messages into chunks, gives each chunk to the path that
// will finish it first, keeps what is not acknowledged, and brings lost paths back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "plugin/core/clock.h"
#include "plugin/core/connection_end.h"
#include "plugin/core/copies.h"
#include "plugin/core/failure.h"
#include "plugin/core/fence.h"
#include "plugin/core/full_size.h"
#include "plugin/core/gpu_memory.h"
#include "plugin/core/grant.h"
#include "plugin/core/path.h"
#include "plugin/core/path_prober.h"
#include "plugin/core/path_state.h"
#include "plugin/core/patience.h"
#include "plugin/core/peer_evidence.h"
#include "plugin/core/rate.h"
#include "plugin/core/region.h"
#include "plugin/core/request.h"
#include "plugin/core/scheduler.h"
#include "plugin/core/standby.h"

namespace deft::net {

struct SenderOptions {
    Nanos link_timeout = Patience::kKernel;
    // With one path, a small message, or one of up to kLoneBytes that is alone, is done once the
    // kernel has it. Not where it may have to be sent again after NCCL has stopped looking after
    // this connection.
    bool early_done = true;
    // Messages of either end may lie in a GPU's memory: none is copied by a processor where a path
    // can write it, and none goes ahead of its receive. NULL: those of this end never do.
    bool gpu_messages = false;
    GpuMemory* gpu = nullptr;
    ProbeToken* probe_token = nullptr;  // of the connections that share these links
    std::shared_ptr<Home> home;         // NULL: the peer cannot ask
    char name[96] = "";                 // of the connection, for messages
    char peer[64] = "";                 // its address, for messages
};

// One thread at a time. Allocates only in its constructor and while paths are (re)connected.
class Sender final : public ConnectionEnd {
public:
    Sender(const SenderOptions& options, std::vector<std::unique_ptr<Dialer>> dialers, Nanos now);
    ~Sender() override;
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    enum class Ready { Yes, NotYet, Failed };
    // Drives the first connection of all paths: ready when all are up, or some are and the others
    // had their chance.
    Ready establish(Nanos now);

    // Begins a send; NULL if it cannot start now. `data` must stay as it is until test() says done,
    // and is in `region`, which granted paths need.
    Request* isend(const void* data, std::size_t size, Nanos now, const Region* region = nullptr);
    // Drives everything; true when this request is done (it is then no longer valid).
    bool test(Request* request, Nanos now, std::size_t* size);
    void progress(Nanos now) override;
    bool busy() const override { return oldest_ < next_message_ && !failure_; }
    bool held() const override { return held_ > 0; }
    std::uint64_t moved() const override;
    void release(const void* data, std::size_t size) override;
    std::vector<std::shared_ptr<Domain>> domains() const override;
    // Before close(): waits up to `limit` for messages that NCCL was told are sent. True if some of
    // them have not got to the peer's host, and leave() is to see to it that they do.
    bool owes(Nanos limit);
    // NCCL is gone: the sender goes on until it is over() what it owes.
    void leave();
    bool over() const override;
    // Ends the connection within `limit`; requests still held are dropped.
    void close(Nanos limit);

    const Failure& failure() const { return failure_; }
    std::size_t paths() const { return links_.size(); }
    PathState state(std::size_t path) const { return links_[path]->state; }
    const RateEstimator& rate(std::size_t path) const { return links_[path]->rate; }
    // How often a path was found to add nothing (core/path_prober.h), and if this one is now.
    std::uint64_t drops() const { return prober_.drops(); }
    bool dropped(std::size_t path) const { return prober_.dropped(path); }

private:
    struct Slot : Request {
        std::uint64_t message = 0;
        const std::byte* data = nullptr;
        const Region* region = nullptr;
        std::uint64_t size = 0;
        std::uint64_t before = 0;  // bytes of all older messages
        std::uint32_t chunk_size = 0;
        std::uint16_t chunks = 0;        // 0: not yet cut
        std::uint64_t pending = 0;       // chunks that no path has
        std::uint64_t acknowledged = 0;  // chunks the receiver has
        std::uint64_t resent = 0;        // chunks that became pending again, see permitted()
        std::byte* copy = nullptr;       // room for one; with it, done as soon as it is written
        bool copied = false;             // data points there
        bool on_gpu = false;             // where data points no processor may read
        std::unique_ptr<std::byte[]> staging;  // of one on_gpu, for paths that read host memory
        std::uint64_t staged = 0;              // chunks of it that are there
        bool delivered = true;                 // all acknowledged

        bool borrows() const { return !delivered && !copied; }  // NCCL's memory is still read
    };
    struct Flight {
        std::uint64_t message;
        std::uint64_t chunks;  // of the message, a bit each
        std::uint32_t length;  // of all of them
        Nanos posted_at;
        Nanos late_at;  // it should long have been acknowledged, see resend_tail()
    };
    static constexpr std::size_t kFlights = 256;
    static constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
    // A path with what is on it.
    struct PathSlot final : PathEvents {
        Sender* sender = nullptr;
        std::size_t index = 0;
        std::unique_ptr<Dialer> dialer;
        Capabilities can;
        std::shared_ptr<Domain> domain;
        // Probing with a path: connected, and not used before `fence` is closed.
        std::unique_ptr<Path> path;
        PathState state = PathState::Down;
        std::unique_ptr<Grants> grants;  // of a granted path, on this incarnation
        Fence fence;                     // while it is open, the flights are those of the lost path
        Nanos away_since = 0;            // it was up, and is not; 0: it is, or never was
        RateEstimator rate;
        Standby standby;                       // of a mixed connection
        std::uint32_t gives_way_to = 0;        // paths, by bits, that it gives way to
        std::array<Flight, kFlights> flights;  // ring: posted and not acknowledged, in order
        std::uint64_t first_flight = 0;
        std::uint64_t next_flight = 0;
        std::uint32_t incarnation = 0;
        std::uint64_t copies_end = 0;  // up to here flights are copies that resend_tail() posted
        std::uint64_t delivered = 0;   // bytes acknowledged on it, ever
        Nanos last_progress = 0;
        Nanos retry_at = 0;
        Nanos back_off = 0;
        Nanos attempt_start = 0;
        Nanos suspect_since = 0;
        Nanos busy_since = 0;
        Nanos up_since = 0;
        Nanos heard = 0;   // anything of the receiver's process
        Nanos looked = 0;  // for what the peer says
        Nanos looked_before = 0;
        Nanos rests_until = 0;  // see rests()
        FullSize full_size;
        Carrier carrier;  // of the local link, when the path was made or last lost
        int failed_attempts = 0;
        bool damaged = false;      // it was lost to damaged bytes, and carried none whole since
        bool unreachable = false;  // an attempt was turned down, and none got to the peer since
        bool led = false;          // an attempt got to the peer, once

        Place place(const Chunk&, std::byte*&) override { return Place::Refuse; }
        void arrived(const Chunk&) override {}
        void control(const Control& control) override {
            heard = sender->now_;
            sender->on_control(*this, control);
        }
        void peer_closed() override {}
        void granted(const Grant& grant) override {
            heard = sender->now_;
            sender->on_grant(*this, grant);
        }
        void acknowledged(std::uint64_t chunks) override {
            if (can.acknowledges && !fence.is_open()) {
                sender->on_counts(*this, chunks, 0, 0);
            }
        }
        std::uint64_t in_flight() const { return next_flight - first_flight; }
        // The chunks of this message that are on it, a bit each.
        std::uint64_t carries(std::uint64_t message) const;
        // It has nothing of its own to be late with.
        bool at_leisure() const { return in_flight() == 0 || next_flight == copies_end; }
    };

    Slot& slot(std::uint64_t message) { return slots_[message % kSlots]; }
    bool may_send(const Slot& slot) const;
    bool done(const Slot& slot) const;
    std::byte* room_for_copy(std::size_t size, Nanos now);
    bool written(const Slot& slot) const;
    void take_copy(Slot& slot);
    const std::byte* staged(Slot& slot, const Chunk& chunk);
    void cut(Slot& slot);
    void pump(Nanos now);
    // Which path takes what (sender_choice.cpp).
    struct Outlooks;
    Outlooks outlooks(const Slot& slot, bool wait) const;
    bool streams_copy(const Slot& slot) const;
    PathSlot* choose(const Slot& slot, Nanos now);
    std::size_t run_of(const PathSlot& link, const Slot& slot, std::uint64_t may) const;
    bool patient(const Slot& slot, Nanos now);
    bool rests(const PathSlot& link, Nanos now) const;
    bool post(PathSlot& link, Slot& slot, Nanos now);
    bool poll_link(PathSlot& link, Nanos now, bool reading);
    void on_control(PathSlot& link, const Control& control);
    void on_counts(PathSlot& link, std::uint64_t received, std::uint64_t completed,
                   std::uint64_t posted);
    void on_end(const PathSlot& link, const Control& control);
    void acknowledge(Slot& slot, std::uint64_t chunks);
    void deliver(Slot& slot);
    void retract();
    void apply(PathSlot& link, PathEvent event, const char* why);
    void count_state(PathSlot& link, PathState before);
    static void end(PathSlot& link);
    enum class How { Broken, Silent };
    void lose(PathSlot& link, const char* why, Nanos now, How how = How::Broken);
    void hasten(Nanos now, Nanos limit);
    void tell_of_swallowing(const PathSlot& link, Nanos now);
    void try_full_size(PathSlot& link, Nanos now);
    void requeue(PathSlot& link);
    void keep(const PathSlot& link);
    void idle(PathSlot& link, Nanos now);
    void timers(Nanos now);
    void check_silence(PathSlot& link, Nanos now);
    void resend_tail(Nanos now);
    std::pair<PathSlot*, std::uint64_t> overdue(const Slot& slot, Nanos now) const;
    void send_again(PathSlot& idle, Slot& slot, std::uint64_t missing, Nanos now);
    bool late(const PathSlot& link, const Slot& slot, Nanos now) const;
    void count_resent(PathSlot& link, const Slot& slot, std::uint64_t chunks);
    // What granted and fenced paths need (sender_fence.cpp).
    std::uint64_t permitted(const PathSlot& link, const Slot& slot) const;
    bool reaches(const PathSlot& link, const Slot& slot) const;
    bool needs_grant(const PathSlot& link, const Slot& slot) const {
        return link.can.granted && slot.size > link.can.inline_bytes;
    }
    bool grant_is_coming(const PathSlot& link, const Slot& slot) const;
    bool open_work(const Slot& slot) const;
    void on_grant(PathSlot& link, const Grant& grant);
    void open_fence(PathSlot& link, Nanos now);
    void on_fenced(const Control& control);
    void close_fence(PathSlot& link, Nanos now);
    bool ask_for(const PathSlot& lost);
    void drive_fences(Nanos now);

    void dial(PathSlot& link, Nanos now);
    bool speaks_for_peer(const PathSlot& link, Nanos now) const;
    bool begin_attempt(PathSlot& link, Nanos now);
    void take(PathSlot& link, Connected&& connected, Nanos now);
    void use(PathSlot& link, Nanos now);
    bool another_moves(const PathSlot& link, Nanos since) const;
    bool waits() const;
    bool connected() const;
    void check_end(Nanos now);
    void complain(Nanos now);
    void check_set_up();
    void describe_links(char* text, std::size_t size) const;
    void check_leaving();
    bool reading_memory() const;
    void fail(int code, const char* text);
    void retire();
    void count_usable();
    void note_reserve(bool alone);
    void tell_reserve();
    std::uint64_t carried_by_reserves() const;
    void try_paths(Nanos now);
    void stand_by(Nanos now);
    bool proving(const Slot& slot, Nanos now);
    void send_probes(Nanos now);
    // Up, and as far as is known it carries pieces of any size.
    bool sound(const PathSlot& link) const {
        return link.state == PathState::Up && (link.full_size.proven() || !any_proven_);
    }
    // What the trials and slowness leave out comes before what gives way to it.
    bool takes(const PathSlot& link) const {
        return sound(link) && !(spare_ ? left_out(link) : link.standby.gives_way() && firsts_);
    }
    bool left_out(const PathSlot& link) const {
        return prober_.out(link.index) || link.standby.out();
    }

    SenderOptions options_;
    Failure failure_;
    std::vector<std::unique_ptr<PathSlot>> links_;
    std::array<Slot, kSlots> slots_;
    Ahead ahead_;
    Copies copies_;
    std::uint64_t next_message_ = 0;
    std::uint64_t bytes_ = 0;        // of all messages
    std::uint64_t next_unsent_ = 0;  // no older message has pending chunks
    std::uint64_t oldest_ = 0;       // all older messages are delivered
    std::uint64_t completed_ = 0;    // as the receiver told
    std::uint64_t posted_ = 0;
    std::size_t held_ = 0;  // requests that NCCL has
    PathProber prober_;
    bool on_reserve_ = false;    // reserves alone carry ...
    bool reserve_told_ = false;  // ... and have carried something since
    std::uint64_t reserved_before_ = 0;
    bool firsts_ = false;               // some usable path gives way to none
    bool spare_ = false;                // some usable path is not left out by the trials
    bool any_proven_ = false;           // a path that is up has carried a full-size piece
    std::size_t unproven_ = 0;          // so many have not
    Nanos prove_until_ = 0;             // before any has, large messages wait so long for the first
    std::size_t granted_up_ = 0;        // granted paths that are up
    std::uint64_t waits_for_ = kProbe;  // the message for whose grant it waits ...
    Nanos waited_ = 0;                  // ... so long by now ...
    Nanos waited_at_ = 0;               // ... as of this look
    std::size_t usable_ = 0;
    PathSlot* only_ = nullptr;  // the one usable path, if there is just one
    Nanos now_ = 0;
    Nanos next_timers_ = 0;
    Nanos first_up_ = 0;
    bool established_ = false;  // establish() has said so
    Nanos started_ = 0;
    Nanos next_look_ = 0;  // for peers that ask
    Nanos busy_from_ = 0;  // since when there has been a message all the time
    Patience patience_;
    PeerEvidence evidence_;
    bool peer_bye_ = false;
    bool said_bye_ = false;      // on the only path there is
    bool leaving_ = false;       // NCCL has closed it
    bool gave_up_ = false;       // and what it owes will not arrive
    bool retired_ = false;       // after a failure: the peer was told
    bool told_waiting_ = false;  // that the peer has not accepted
    bool fencing_ = false;  // some path is fenced or granted: lost ones, of any kind, are fenced
    bool fresh_ = false;    // with one path: nothing was polled since the last isend
};

}  // namespace deft::net
