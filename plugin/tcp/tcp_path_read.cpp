// SPDX-License-Identifier: Apache-2.0
// What comes in on a TcpPath: control frames at the sender, chunks at the receiver.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "plugin/core/copy_in_order.h"
#include "plugin/core/crc32c.h"
#include "plugin/tcp/tcp_path.h"

namespace deft::net {
namespace {

constexpr int kReadsPerPoll = 16;   // other paths get their turn
constexpr std::size_t kTiny = 256;  // chunks up to this are looked at first, see peeked_
constexpr std::size_t kLook = 1024;
constexpr int kPatientPolls = 64;  // then nothing more comes: the peer's kernel is to be answered

// tcp(7): MSG_TRUNC throws bytes away without copying them. Not through recv(), of which thread
// sanitizers think that it writes them, in all threads to the same place.
ssize_t throw_away(int fd, std::size_t bytes) {
    return ::syscall(SYS_recvfrom, fd, nullptr, bytes, MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr);
}

}  // namespace

Path::Poll TcpPath::read_controls(PathEvents& events) {
    Poll result = Poll::Idle;
    for (int reads = 0; reads < kReadsPerPoll; ++reads) {
        const std::size_t room = 1024 - stage_end_;
        const ssize_t got = recv(fd_.get(), stage_.data() + stage_end_, room, MSG_DONTWAIT);
        if (got < 0) {
            return would_block() ? result : lost_errno("receive");
        }
        if (got == 0) {
            return lost(Loss::Ended, "the peer closed the connection");
        }
        result = Poll::Worked;
        stage_end_ += static_cast<std::size_t>(got);
        std::size_t at = 0;
        for (; stage_end_ - at >= wire::kControlBytes; at += wire::kControlBytes) {
            Control control;
            const wire::Decoded decoded =
                wire::decode(std::span(stage_).subspan(at).first<wire::kControlBytes>(), control);
            if (decoded != wire::Decoded::Ok) {
                return not_decoded(decoded);
            }
            if (control.kind == Control::Kind::Damaged) {
                return lost(Loss::Damaged, "the peer got damaged bytes (checksum)");
            }
            events.control(control);
        }
        std::memmove(stage_.data(), stage_.data() + at, stage_end_ - at);
        stage_end_ -= at;
        if (static_cast<std::size_t>(got) < room) {
            break;  // the kernel had no more
        }
    }
    return result;
}

// Only the peer of the hello speaks here: what lacks the magic was damaged, too.
Path::Poll TcpPath::not_decoded(wire::Decoded why) {
    return why == wire::Decoded::Malformed
               ? lost(Loss::Protocol, "the peer sent a frame that cannot be")
               : damaged();
}

// Takes one header, and with it a whole small chunk, off the stage.
TcpPath::Step TcpPath::take_header(PathEvents& events) {
    if (staged() < wire::kChunkBytes) {
        return Step::NeedMore;
    }
    wire::ChunkHeader header;
    const wire::Decoded decoded =
        wire::decode(std::span(stage_).subspan(stage_begin_).first<wire::kChunkBytes>(), header);
    if (decoded != wire::Decoded::Ok) {
        not_decoded(decoded);
        return Step::Failed;
    }
    if (header.type == wire::FrameType::Bye) {
        stage_begin_ += wire::kChunkBytes;
        events.peer_closed();
        return Step::Go;
    }
    if (header.type == wire::FrameType::Fence) {
        stage_begin_ += wire::kChunkBytes;
        events.fence_asked(header.chunk.index, static_cast<std::uint32_t>(header.chunk.message));
        return Step::Go;
    }
    if (checked_ && (header.flags & wire::kFlagChecksum) == 0) {
        not_decoded(wire::Decoded::Malformed);
        return Step::Failed;
    }
    const Chunk& chunk = header.chunk;
    const bool small = chunk.length <= kEagerBytes;
    if (small && staged() < wire::kChunkBytes + chunk.length) {
        return Step::NeedMore;
    }
    const std::size_t here = std::min<std::size_t>(staged() - wire::kChunkBytes, chunk.length);
    const std::byte* const payload = stage_.data() + stage_begin_ + wire::kChunkBytes;
    std::byte* destination = nullptr;
    const PathEvents::Place place = events.place(chunk, destination);
    if (refused(place)) {
        return Step::Failed;
    }
    // What is not stored may be filler in the place of bytes that are no longer there.
    verify_ = checked_ && place == PathEvents::Place::Store;
    sum_ = verify_ ? crc32c(0, payload, here) : 0;
    if (verify_ && here == chunk.length && sum_ != header.checksum) {
        damaged();
        return Step::Failed;
    }
    apart_ = verify_ && here < chunk.length && chunk.total <= kFlagged;
    if (place == PathEvents::Place::Store && here > 0) {
        copy_in_order(apart_ ? unverified_.get() : destination, payload, here);
    }
    stage_begin_ += wire::kChunkBytes + here;
    last_tiny_ = chunk.length <= kTiny;
    last_large_ = chunk.length > kStaged;
    if (small) {
        events.arrived(chunk);
        return Step::Go;
    }
    return begin_large(events, header, here);
}

// The first `here` bytes of a large chunk are at their place; read_payload() gets the rest.
TcpPath::Step TcpPath::begin_large(PathEvents& events, const wire::ChunkHeader& header,
                                   std::size_t here) {
    chunk_ = header.chunk;
    overtaken_ = false;
    expected_ = header.checksum;
    payload_left_ = chunk_.length - here;
    if (payload_left_ == 0) {
        if (!chunk_.kept && taken_back()) {
            return Step::Failed;
        }
        events.arrived(chunk_);
    }
    return Step::Go;
}

// True if the path ends for what the receiver says of a chunk.
bool TcpPath::refused(PathEvents::Place place) {
    if (place == PathEvents::Place::Refuse) {
        lost(Loss::Protocol, "the peer broke the protocol");
    }
    return loss_ != Loss::None;
}

// Reads the rest of a large chunk straight to where it belongs, and the next header behind it.
Path::Poll TcpPath::read_payload(PathEvents& events, bool& drained) {
    std::byte* destination = nullptr;
    const PathEvents::Place place = events.place(chunk_, destination);
    if (refused(place)) {
        return Poll::Failed;
    }
    ssize_t got;
    std::byte* at = nullptr;
    std::size_t asked = payload_left_;
    overtaken_ = overtaken_ || place == PathEvents::Place::Overtaken;
    if (overtaken_ || place == PathEvents::Place::Discard) {
        verify_ = false;
        got = throw_away(fd_.get(), payload_left_);
    } else {
        stage_begin_ = stage_end_ = 0;
        iovec parts[2];
        at = (apart_ ? unverified_.get() : destination) + (chunk_.length - payload_left_);
        parts[0] = {at, payload_left_};
        parts[1] = {stage_.data(), kTail};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        asked += kTail;
        got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    }
    if (got < 0) {
        drained = true;
        return would_block() ? Poll::Idle : lost_errno("receive");
    }
    if (got == 0) {
        return lost(Loss::Ended, "the peer closed the connection");
    }
    drained = static_cast<std::size_t>(got) < asked;
    const std::size_t of_chunk = std::min(static_cast<std::size_t>(got), payload_left_);
    if (verify_) {
        sum_ = crc32c(sum_, at, of_chunk);
    }
    payload_left_ -= of_chunk;
    stage_end_ = stage_begin_ + static_cast<std::size_t>(got) - of_chunk;
    if (payload_left_ == 0 && verify_ && sum_ != expected_) {
        return damaged();
    }
    if (payload_left_ == 0) {
        if (!chunk_.kept && taken_back()) {
            return Poll::Failed;
        }
        if (verify_ && apart_) {
            copy_in_order(destination, unverified_.get(), chunk_.length);
        }
        // To say that it has come would be untrue as long as the other path has not brought it.
        if (overtaken_ && events.place(chunk_, destination) != PathEvents::Place::Discard) {
            return lost(Loss::TimedOut, "another path is in the midst of what it brought");
        }
        events.arrived(chunk_);
    }
    return Poll::Worked;
}

// Takes out of the socket what was only looked at. False if it cannot be had now.
bool TcpPath::take_looked_at() {
    while (peeked_.bytes > 0) {
        const ssize_t got = throw_away(fd_.get(), peeked_.bytes);
        if (got <= 0) {
            return false;
        }
        peeked_.bytes -= std::min(static_cast<std::size_t>(got), peeked_.bytes);
    }
    peeked_.times = 0;
    return true;
}

// Reads what the socket has behind what is staged. Idle: nothing.
Path::Poll TcpPath::fill_stage(bool look, bool whole, bool& drained) {
    std::memmove(stage_.data(), stage_.data() + stage_begin_, staged());
    stage_end_ -= stage_begin_;
    stage_begin_ = 0;
    // What comes after a large chunk is likely one, too, and better not read to here.
    const std::size_t most = look ? kLook : whole && last_large_ ? kTail : stage_.size();
    const std::size_t room = most - stage_end_;
    const ssize_t got = recv(fd_.get(), stage_.data() + stage_end_, room,
                             look ? MSG_DONTWAIT | MSG_PEEK : MSG_DONTWAIT);
    if (got < 0) {
        quiet_ = true;
        return would_block() ? Poll::Idle : lost_errno("receive");
    }
    if (got == 0) {
        return lost(Loss::Ended, "the peer closed the connection");
    }
    const auto bytes = static_cast<std::size_t>(got);
    drained = bytes < room;
    quiet_ = look && drained;
    stage_end_ += bytes;
    peeked_.bytes += look ? bytes : 0;
    peeked_.times += look ? 1 : 0;
    peeked_.polls = 0;
    return Poll::Worked;
}

Path::Poll TcpPath::read_chunks(PathEvents& events) {
    const bool further = peeked_.times < peeked_.most;
    const bool due = peeked_.bytes > 0 && peeked_.polls++ >= (further ? kPatientPolls : 1);
    if (peeked_.bytes > 0 && !further && !due) {
        return Poll::Idle;
    }
    Poll result = Poll::Idle;
    bool drained = false;
    for (int reads = 0; reads < kReadsPerPoll; ++reads) {
        if (payload_left_ == 0) {
            Step step = Step::Go;
            while (payload_left_ == 0 && step == Step::Go) {
                step = take_header(events);
            }
            if (step == Step::Failed) {
                return Poll::Failed;
            }
        }
        const bool whole = staged() == 0 && payload_left_ == 0;
        const bool look = look_first_ && quiet_ && last_tiny_ && whole;
        const bool leave = whole && (drained || (look && further && !due));
        if (!leave && !take_looked_at()) {
            return lost_errno("receive");
        }
        if (drained) {
            return result;
        }
        if (payload_left_ > 0) {
            stage_begin_ = stage_end_ = 0;  // take_header used up all of it
            const Poll poll = read_payload(events, drained);
            if (poll == Poll::Failed) {
                return poll;
            }
            result = poll == Poll::Worked ? poll : result;
            continue;
        }
        const Poll filled = fill_stage(look, whole, drained);
        if (filled != Poll::Worked) {
            return filled == Poll::Idle ? result : filled;
        }
        result = filled;
    }
    return result;
}

}  // namespace deft::net
