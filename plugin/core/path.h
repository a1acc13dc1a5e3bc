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

namespace deft::net {

// One piece of a message. Message numbers count from 0 on each connection.
struct Chunk {
    std::uint64_t message = 0;
    std::uint64_t total = 0;       // bytes of the whole message
    std::uint64_t offset = 0;      // of this chunk: index * chunk_size
    std::uint32_t chunk_size = 0;  // of all chunks of the message but the last; 0 if total is 0
    std::uint32_t length = 0;      // bytes of this chunk
    std::uint16_t index = 0;
    // The sender needs no more of `data` than the kernel copies now, and can send it again: it may
    // not be lent to the kernel, and its acknowledgement is in no hurry.
    bool kept = false;
    const std::byte* data = nullptr;  // sender only; valid until the message is done or abandoned
};

// Instead of a message's number: a piece that only shows whether the path carries it. It has no
// data, goes nowhere, and is acknowledged as others are.
inline constexpr std::uint64_t kProbe = ~std::uint64_t{0};

// The receiver's state, told to the sender. All counts only grow.
struct Control {
    // Damaged: what came on this path was not what had been sent; the path ends.
    enum class Kind : std::uint8_t { State = 1, Bye = 2, PathDown = 3, Damaged = 4 };
    Kind kind = Kind::State;
    std::uint16_t path = 0;       // PathDown: which one the receiver has lost
    std::uint64_t received = 0;   // chunks that came in whole on this path since it was connected
    std::uint64_t completed = 0;  // messages complete, without a gap
    std::uint64_t posted = 0;     // receives posted: the sender's credit
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

protected:
    ~PathEvents() = default;
};

class Path {
public:
    enum class Poll { Idle, Worked, Failed };
    // Damaged: a checksum was wrong, here or at the peer.
    enum class Loss { None, Ended, Reset, TimedOut, Unreachable, Protocol, Damaged };

    virtual ~Path() = default;
    virtual Post post(const Chunk& chunk) = 0;
    virtual Post send(const Control& control) = 0;
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
    // path is gone. True once the job's memory may change; to be called until then.
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
