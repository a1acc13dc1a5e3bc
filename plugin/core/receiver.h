// SPDX-License-Identifier: Apache-2.0
// The receiving half of a connection: puts chunks from any path into the posted buffers, tells the
// sender what has come and how much more may come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/core/clock.h"
#include "plugin/core/connection_end.h"
#include "plugin/core/failure.h"
#include "plugin/core/gpu_memory.h"
#include "plugin/core/path.h"
#include "plugin/core/path_state.h"
#include "plugin/core/patience.h"
#include "plugin/core/peer_evidence.h"
#include "plugin/core/request.h"

namespace deft::net {

// A path that the sender has made and the listener has admitted.
struct Admitted {
    std::unique_ptr<Path> path;
    std::uint16_t index = 0;
    std::uint32_t incarnation = 0;
    LinkCounters* counters = nullptr;
    // Receives posted, as the sender was told if that was not just now.
    std::uint64_t told_posted = ~std::uint64_t{0};
};

// Where new paths of this connection turn up.
class PathSource {
public:
    virtual ~PathSource() = default;
    // The next admitted path, if any; cheap when there is none. The receiver's state goes into the
    // welcome.
    virtual bool next(Nanos now, const Control& state, Admitted& admitted) = 0;
    // One is on its way: next() is to be called often.
    virtual bool expecting() const { return false; }
    virtual Carrier carrier(std::size_t path) const = 0;  // of the local link
    // All in which granted paths may turn up; constant.
    virtual std::vector<std::shared_ptr<Domain>> domains() const { return {}; }
    // What the sender's host says of this connection, asked over the link of a path that was up
    // once. To be called again and again: an answer is given once.
    virtual Word ask(std::size_t path, Nanos now) = 0;
};

struct ReceiverOptions {
    Nanos link_timeout = Patience::kKernel;
    bool checked = false;       // paths verify checksums
    bool lazy_acks = true;      // of small messages on a single path: see SenderOptions::early_done
    bool gpu_messages = false;  // as SenderOptions::gpu_messages
    GpuMemory* gpu = nullptr;
    std::size_t absent =
        0;  // paths the sender knows to be dead: establish() does not wait for them
    char name[96] = "";
    char peer[64] = "";  // its address, for messages
};

// One thread at a time. Allocates only in its constructor and while paths are (re)connected.
class Receiver final : public ConnectionEnd {
public:
    // `paths`: as many as the sender said it would make.
    Receiver(const ReceiverOptions& options, std::size_t paths, std::unique_ptr<PathSource> source);
    ~Receiver() override;
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;

    // Takes in what stands at the source; true when all paths are up or the others had their
    // chance.
    bool establish(Nanos now);

    // Posts a buffer for the next message; NULL if none can be posted now. `early`: the caller does
    // not care when the bytes have come (NCCL's optional completion). `data` is in `region`,
    // without which granted paths may not write there.
    Request* irecv(void* data, std::size_t size, bool early, Nanos now,
                   const Region* region = nullptr);
    bool test(Request* request, Nanos now, std::size_t* size);
    // Of what has come to `data` in a GPU's memory: a request that is done once the GPU sees it.
    // NULL: it does already, or `failure()` says why it cannot be known.
    Request* flush(const void* data, const Region& region, Nanos now);
    void progress(Nanos now) override;
    bool busy() const override { return completed_ < posted_ && !failure_; }
    bool held() const override { return held_ > 0; }
    bool fences() const override { return !domains_.empty(); }
    std::uint64_t moved() const override;
    void release(const void* data, std::size_t size) override;
    std::vector<std::shared_ptr<Domain>> domains() const override;
    void close(Nanos limit);

    const Failure& failure() const { return failure_; }
    std::size_t paths() const { return links_.size(); }
    PathState state(std::size_t path) const { return links_[path]->state; }

private:
    static constexpr std::size_t kFlushes = kSlots;  // open at a time
    static constexpr std::size_t kMostPaths = 16;
    struct Slot : Request {
        std::uint64_t message = 0;
        std::byte* data = nullptr;
        const Region* region = nullptr;
        std::uint64_t capacity = 0;
        std::uint64_t total = 0;
        std::uint32_t chunk_size = 0;
        std::uint16_t missing = 0;
        std::uint64_t arrived = 0;  // one bit per chunk
        bool known = false;         // total and chunk_size are
        bool complete = true;
        bool on_gpu = false;        // where data points no processor may write
        std::uint32_t written = 0;  // paths, a bit each, that have written to a GPU's memory
    };
    // A message that came before its receive was posted.
    struct Early {
        bool begun = false;  // some of it is here: the rest comes here too
        bool full = false;
        std::uint64_t message = 0;
        std::uint32_t size = 0;
        std::byte* bytes = nullptr;  // room for ahead_.each
    };
    struct FlushSlot : Request {
        // Reads that are open, of each path that has written, by its flusher of that time.
        struct Read {
            std::shared_ptr<Flusher> by;
            std::uint64_t number = 0;
        };
        std::array<Read, kMostPaths> reads;
        const void* data = nullptr;
        Nanos begun = 0;
    };
    struct PathSlot;
    // A lost path until it is fenced: what came on it before still counts.
    struct FencedPath final : PathEvents {
        Receiver* receiver = nullptr;
        PathSlot* link = nullptr;
        std::unique_ptr<Path> path;
        std::uint32_t incarnation = 0;
        std::uint64_t received = 0;

        Place place(const Chunk& chunk, std::byte*& destination) override {
            return receiver->place(*link, chunk, destination);
        }
        void arrived(const Chunk& chunk) override {
            ++received;
            receiver->take_read(*link, chunk);
        }
        Place landed(const Chunk& chunk) override {
            ++received;
            return receiver->landed(*link, chunk);
        }
        void control(const Control&) override {}
        void peer_closed() override {}
    };
    struct PathSlot final : PathEvents {
        Receiver* receiver = nullptr;
        std::size_t index = 0;
        std::unique_ptr<Path> path;
        Capabilities can;
        std::shared_ptr<Flusher> flusher;    // of the newest incarnation that had one
        std::vector<std::byte> staging;      // of a chunk for a GPU's memory that is being read
        std::uint64_t granted = 0;           // older messages are, or need it not
        std::uint64_t credited = 0;          // receives that its grants have told of
        FencedPath fenced;                   // the incarnation before
        std::uint32_t asked = 0;             // the sender wants to know of this one; 0: of none
        std::uint32_t barred = 0;            // it and older ones never come in any more
        std::uint32_t kept_incarnation = 0;  // the last on which something came, and ended ...
        std::uint64_t kept_received = 0;     // ... after so many chunks
        LinkCounters* counters = nullptr;
        PathState state = PathState::Down;
        std::uint32_t incarnation = 0;
        std::uint64_t carrier_lost = 0;   // of the local link, when the path was made
        std::uint64_t received = 0;       // chunks since it was connected
        std::uint64_t told_received = 0;  // as of the last control frame
        bool tell = false;                // a control frame is due
        Nanos told_at = 0;
        Nanos rests_until = 0;   // see kStreamRests
        std::uint64_t owed = 0;  // bytes for which one may wait, see owe()
        Nanos owed_since = 0;
        std::uint64_t lone = 0;        // chunks that may wait longer, see owe() ...
        std::uint64_t lone_bytes = 0;  // ... and their bytes
        Nanos say_gone_at = 0;         // when the sender is told (again) that it is lost; 0: not
        Nanos say_gone_pause = 0;      // after that

        bool reading = false;  // a chunk, to where it belongs:
        std::uint64_t reading_message = 0;
        std::uint16_t reading_index = 0;
        bool overtaken = false;  // by another path that began it later

        Place place(const Chunk& chunk, std::byte*& destination) override {
            const Place place = receiver->place(*this, chunk, destination);
            return place == Place::Store && !receiver->alone(*this, chunk) ? Place::Overtaken
                                                                           : place;
        }
        void arrived(const Chunk& chunk) override {
            reading = false;
            ++received;
            receiver->take_read(*this, chunk);
        }
        void control(const Control&) override {}
        void peer_closed() override { receiver->peer_bye_ = true; }
        Place landed(const Chunk& chunk) override {
            ++received;
            return receiver->landed(*this, chunk);
        }
        void fence_asked(std::uint16_t path, std::uint32_t incarnation) override {
            receiver->fence_asked(path, incarnation);
        }
    };

    Slot& slot(std::uint64_t message) { return slots_[message % kSlots]; }
    Early& early(std::uint64_t message) { return early_[message % kEagerAhead]; }
    PathEvents::Place judge(const Chunk& chunk);
    PathEvents::Place place(PathSlot& link, const Chunk& chunk, std::byte*& destination);
    // Memory of a GPU (receiver_gpu.cpp).
    bool put(const Slot& slot, std::uint64_t offset, const std::byte* bytes, std::size_t size);
    static std::byte* staging_of(PathSlot& link, const Chunk& chunk);
    void take_read(PathSlot& link, const Chunk& chunk);
    std::uint32_t written_by(const void* data) const;
    enum class Flushing { Done, Waits, Impossible };
    Flushing begin_flush(const PathSlot& link, const Region& region, const void* data,
                         FlushSlot::Read& read);
    bool driver_flushes(const void* data);
    bool flushed(FlushSlot& flush);
    bool alone(PathSlot& link, const Chunk& chunk);
    void take_chunk(PathSlot& link, const Chunk& chunk);
    bool owe(PathSlot& link, const Chunk& chunk);
    void complete(Slot& slot);
    void poll_links(const Slot* wanted, Nanos now);
    bool tell(PathSlot& link, Nanos now);
    bool can_wait(const PathSlot& link, Nanos now) const;
    void told(PathSlot& link, Nanos now);
    bool take_early(Slot& slot);
    void announce(Nanos now);
    Control state_of(const PathSlot& link) const;
    void apply(PathSlot& link, PathEvent event, const char* why);
    void lose(PathSlot& link, const char* why, Nanos now);
    void say_gone(PathSlot& link, Nanos now);
    // What granted and fenced paths need (receiver_fence.cpp).
    void grant(PathSlot& link);
    void grant_all();
    PathEvents::Place landed(PathSlot& link, const Chunk& chunk);
    void fence_asked(std::uint16_t path, std::uint32_t incarnation);
    void begin_fence(PathSlot& link);
    static void keep_count(PathSlot& link, std::uint32_t incarnation, std::uint64_t received);
    void drive_fences(Nanos now);
    bool answer_fence(const PathSlot& link);
    void fence_all(Nanos limit);

    void take_in(Nanos now);
    void timers(Nanos now);
    void check_end(Nanos now);
    bool cut_off(Nanos now);
    void fail(int code, const char* text);
    void retire();

    ReceiverOptions options_;
    Failure failure_;
    std::unique_ptr<PathSource> source_;
    const std::vector<std::shared_ptr<Domain>> domains_;
    std::vector<std::unique_ptr<PathSlot>> links_;
    std::array<Slot, kSlots> slots_;
    Ahead ahead_;
    const Ahead credited_;            // what the sender may use of it
    std::vector<FlushSlot> flushes_;  // none where no message is in a GPU's memory
    std::array<Early, kEagerAhead> early_;
    std::unique_ptr<std::byte[]> early_bytes_;
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;          // without a gap
    std::size_t held_ = 0;                 // requests that NCCL has
    std::uint64_t worked_ = 0;             // polls of paths that brought bytes
    std::uint64_t announced_ = 0;          // credit the sender knows of
    std::uint64_t unannounced_bytes_ = 0;  // posted since; what came before it was: its size
    bool unannounced_large_ = false;       // some of it for more than a small message
    Nanos now_ = 0;
    Nanos next_timers_ = 0;
    Nanos next_look_ = 0;
    Nanos first_up_ = 0;
    std::uint64_t worked_before_ = 0;  // as of the last look at silence
    Nanos quiet_since_ = 0;
    Nanos next_silence_ = 0;
    bool silent_ = false;  // the kernel has not heard of the peer for long, on any path
    Patience patience_;
    PeerEvidence evidence_;
    std::size_t up_ = 0;
    std::size_t granted_up_ = 0;  // granted ones among them
    bool granting_ = false;       // some path is or was a granted one
    bool fences_ = false;         // one is under way, or wanted
    bool peer_bye_ = false;
    bool retired_ = false;      // after a failure: the peer was told
    bool damage_told_ = false;  // once per connection aloud
};

}  // namespace deft::net
