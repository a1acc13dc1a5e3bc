// SPDX-License-Identifier: Apache-2.0
// What the striping core needs from a kind of link (TCP, verbs, UCX): the whole interface.
//
// A path joins one local link with one of the peer's and carries chunks from the sender to the
// receiver and control frames back. Used by one thread at a time. No call blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/link_stats.h"
#include "plugin/core/clock.h"
#include "plugin/core/gpu_memory.h"
#include "plugin/core/grant.h"
#include "plugin/core/region.h"

namespace deft::net {

// What a kind of path can do, and what it asks of the core; constant. As it stands here: a stream.
// It carries bytes in order, the receiver reads them to where they belong, and nothing of it lands
// once it is closed there.
struct Capabilities {
    // Writes chunks straight into memory that the receiver has granted (Grant), out of memory that
    // is registered in the path's domain (Region). Never gets a probe: whoever makes such a path
    // sees to it that full-size packets pass before it is Connected.
    bool granted = false;
    // Of a granted path: messages of up to so many bytes need neither, as they go by a copy.
    std::uint32_t inline_bytes = 0;
    // Says itself what has come (PathEvents::acknowledged): the receiver need not.
    bool acknowledges = false;
    // What it had may land late, after its end here: a chunk goes elsewhere only when the receiver
    // has fenced the path (Path::fence) and said how much it got. Every granted path is fenced.
    bool fenced = false;
    // Of a granted path: a run of neighbouring chunks, of up to so many bytes, is one piece, as
    // each costs it a request and its completion. 0: it takes one chunk at a time.
    std::uint32_t run_bytes = 0;
};

// One piece of a message: a chunk, or on granted paths a run of neighbouring ones. Message numbers
// count from 0 on each connection.
struct Chunk {
    std::uint64_t message = 0;
    std::uint64_t total = 0;       // bytes of the whole message
    std::uint64_t offset = 0;      // of this chunk: index * chunk_size
    std::uint32_t chunk_size = 0;  // of all chunks of the message but the last; 0 if total is 0
    std::uint32_t length = 0;      // bytes of this piece
    std::uint16_t index = 0;       // of its first chunk
    // The sender needs no more of `data` than the kernel copies now, and can send it again: it may
    // not be lent to the kernel, and its acknowledgement is in no hurry.
    bool kept = false;
    const std::byte* data = nullptr;  // sender only; valid until the message is done or abandoned
    // Sender, on granted paths; both NULL: the whole message, of up to inline_bytes, is copied by
    // post(). Else `data` is registered in the path's domain and stays as it is until the chunk is
    // acknowledged or the path retracted; the grant is valid during post() and has room for it.
    const Region* region = nullptr;
    const Grant* grant = nullptr;  // the chunk goes to grant->address + offset
};

// Instead of a message's number: a piece that only shows whether the path carries it. It has no
// data, goes nowhere, and is acknowledged as others are.
inline constexpr std::uint64_t kProbe = ~std::uint64_t{0};

// The receiver's state, told to the sender. All counts only grow.
struct Control {
    // Damaged: what came on this path was not what had been sent; the path ends.
    // Fenced: nothing more of what was sent on that incarnation of `path` will land.
    enum class Kind : std::uint8_t { State = 1, Bye = 2, PathDown = 3, Damaged = 4, Fenced = 5 };
    Kind kind = Kind::State;
    std::uint16_t path = 0;  // PathDown, Fenced: which one
    // Chunks that came in whole on this path since it was connected (Fenced: on that one, until it
    // was fenced; PathDown: the path's incarnation).
    std::uint64_t received = 0;
    std::uint32_t incarnation = 0;  // Fenced only; its other counts are 0
    std::uint64_t completed = 0;    // messages complete, without a gap
    std::uint64_t posted = 0;       // receives posted: the sender's credit
};

enum class Post {
    Ok,     // the path has the chunk; its bytes may still be on their way out of poll()
    Again,  // no room now
    Failed  // the path is dead, see failure()
};

// What comes out of a path while it is polled.
class PathEvents {
public:
    enum class Place { Store, Discard, Refuse, Overtaken };
    // Where the chunk's bytes go; asked again each time more of them are read, as the message may
    // have been completed by another path. Refuse: the peer breaks the protocol. Overtaken: another
    // path has begun the same chunk since; as checksums are of what one path has read, two may not
    // write to one place: the rest goes nowhere, and the path ends with it unless the other has
    // brought the chunk by then.
    virtual Place place(const Chunk& chunk, std::byte*& destination) = 0;
    virtual void arrived(const Chunk& chunk) = 0;
    virtual void control(const Control& control) = 0;
    virtual void peer_closed() = 0;  // the peer said that it will send no more

    // Sender: the receiver lets a message be written.
    virtual void granted(const Grant& /*grant*/) {}
    // Sender, of paths that acknowledge themselves: so many of the chunks posted on this path, in
    // their order, are with the peer's host, and none of their memory is read any more.
    virtual void acknowledged(std::uint64_t /*chunks*/) {}
    // Receiver: a chunk was written to where its grant said, whole. Refuse: the peer breaks the
    // protocol, the path ends.
    virtual Place landed(const Chunk& /*chunk*/) { return Place::Refuse; }
    // Receiver: the sender asks for a fence of this incarnation of another path.
    virtual void fence_asked(std::uint16_t /*path*/, std::uint32_t /*incarnation*/) {}

protected:
    ~PathEvents() = default;
};

// A stream that had nothing to say is left alone for so long next to paths that take no system
// call.
inline constexpr Nanos kStreamRests = 50 * kMicrosecond;

class Path {
public:
    enum class Poll { Idle, Worked, Failed };
    // Damaged: a checksum was wrong, here or at the peer.
    enum class Loss { None, Ended, Reset, TimedOut, Unreachable, Protocol, Damaged };

    virtual ~Path() = default;
    virtual Capabilities capabilities() const { return {}; }
    // Where memory has to be registered for this path; NULL: nowhere.
    virtual const Domain* domain() const { return nullptr; }
    // Receiver: what brings the writes of this path's device into a GPU's memory; NULL: nothing,
    // or no need. May be used longer than the path.
    virtual std::shared_ptr<Flusher> flusher() const { return nullptr; }
    virtual Post post(const Chunk& chunk) = 0;
    virtual Post send(const Control& control) = 0;
    // Receiver, of a granted path.
    virtual Post grant(const Grant& /*grant*/) { return Post::Failed; }
    // Sender, on any path: asks the receiver for a fence of this incarnation of another path, or
    // for what it said of one before. Again: no room now, or nobody there who knows the question.
    virtual Post ask_fence(std::uint16_t /*path*/, std::uint32_t /*incarnation*/) {
        return Post::Again;
    }
    // Receiver: ends this path such that nothing the peer has posted on it reaches memory any more;
    // what came whole before that is still handed to `events`. True once all of that is so; to be
    // called until then. (RC: the queue pair to the error state, then its completions.)
    virtual bool fence(PathEvents& /*events*/) {
        close(0);
        return true;
    }
    // Tells the peer that no more will come, once what was posted is out.
    virtual Post send_bye() = 0;
    // The bytes of this message are no longer there: finish its frame with anything, the peer will
    // not look at it.
    virtual void abandon(std::uint64_t message) = 0;
    // Moves bytes both ways. `reading`: look for incoming bytes too.
    virtual Poll poll(PathEvents& events, bool reading) = 0;
    virtual bool writing() const = 0;  // part of a frame still waits for room
    // The peer's host has all that was posted.
    virtual bool drained() const { return !writing(); }
    // From now on the kernel goes on with the connection for as long as with others, also when this
    // process has ended.
    virtual void leave_to_kernel() {}
    // Orderly: hands what was posted to the peer within `limit` if that is still possible.
    virtual void close(Nanos limit) = 0;
    // Before close(0): nothing more of what was posted gets to the peer, which is told that the
    // path is gone. True once the job's memory may change; to be called until then. A granted path
    // is only then closed: no work request of it is open any more, and none reads memory again.
    virtual bool retract() { return true; }
    // How long ago anything of the peer's was last heard, its kernel's acknowledgements included.
    virtual Nanos silence() const { return 0; }
    // What wants a system call now and then and is in no hurry; to be called once a
    // millisecond or less often.
    virtual void look_after(Nanos /*now*/) {}
    virtual Loss loss() const = 0;
    virtual const char* failure() const = 0;   // the exact cause, for people
    virtual const char* describe() const = 0;  // "eth0 10.0.0.1 -> 10.0.0.2"
};

// A path that was just connected, and what the peer said about it.
struct Connected {
    std::unique_ptr<Path> path;
    std::uint64_t completed = 0;
    std::uint64_t posted = 0;
    std::int64_t speed_mbps = 0;  // of the slower end; 0 unknown
    double probed_rate = 0;       // bytes per second, as measured before the job; 0: not
    Nanos round_trip = 0;
};

// How often a local link has lost and regained its carrier, or an address, as far as is known.
// To paths changes matter, not levels: the kernel may report a carrier up to a second after it
// works again.
struct Carrier {
    std::uint64_t lost = 0;
    std::uint64_t gained = 0;
    bool down = false;  // it was lost, and the kernel has not said since that it is back
};

// Makes one path, again and again if need be.
class Dialer {
public:
    // Silent: nobody answered in time. Failed: somebody did, or this host knows no way. Refused:
    // the host that this path last led to (or is to) says that nobody listens there. Closed: the
    // peer's process does not have the other end, or no longer. Fatal: no use in trying again.
    enum class Result { Pending, Connected, Silent, Failed, Refused, Closed, Fatal };

    virtual ~Dialer() = default;
    // Of the paths that it makes.
    virtual Capabilities capabilities() const { return {}; }
    virtual std::shared_ptr<Domain> domain() const { return nullptr; }
    // Paths of the connection, by bits, whose wire they share, or whose reserve they are: they are
    // for the time without those.
    virtual std::uint32_t gives_way_to() const { return 0; }
    // They use what others have more use for, so that a plan should do without.
    virtual bool reserve() const { return false; }
    // Begins an attempt; `incarnation` counts the attempts of this path.
    virtual void start(std::uint32_t incarnation, Nanos now) = 0;
    // What failed is in failure().
    virtual Result poll(Nanos now, Connected& connected) = 0;
    virtual void cancel() = 0;
    // Whether the next attempts keep to packets that pass everywhere.
    virtual void keep_small(bool /*small*/) {}
    // Whether packets of full size get to the peer's host now, seen without the path that stands.
    // Begins a trial, or goes on with one, and says what came out once.
    enum class Trial { Pending, Passed, Swallowed };
    virtual Trial try_full_size(Nanos /*now*/) { return Trial::Swallowed; }
    // The peer's host has taken this attempt's connection and nobody has closed it since: what is
    // missing is an answer, which comes no earlier than the peer's NCCL asks for the connection.
    virtual bool reached(Nanos /*now*/) const { return false; }
    virtual Carrier carrier() const = 0;  // of the local link
    virtual const char* failure() const = 0;
    virtual const char* describe() const = 0;
    virtual LinkCounters& counters() = 0;
};

// Where the peer of a sender that has lost every path can ask whether this connection still lives.
class Home {
public:
    virtual ~Home() = default;
    // Answers whoever asks for any connection of this process; cheap when nobody does.
    virtual void poll(Nanos now) = 0;
    virtual void leave() = 0;  // from now on this connection does not live
};

}  // namespace deft::net
