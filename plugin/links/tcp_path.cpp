// SPDX-License-Identifier: Apache-2.0
#include "plugin/links/tcp_path.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/core/crc32c.h"

namespace deft::net {
namespace {

constexpr int kReadsPerPoll = 16;  // other paths get their turn
// Sent in place of bytes that are no longer there; the receiver has the message and looks away.
constexpr std::array<std::byte, 16384> kFiller{};

bool would_block() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

TcpPath::TcpPath(UniqueFd fd, Role role, std::string description, bool checked)
    : fd_(std::move(fd)), role_(role), checked_(checked), description_(std::move(description)) {}

Path::Poll TcpPath::lost(Loss loss, const char* text) {
    if (loss_ == Loss::None) {
        loss_ = loss;
        failure_ = description_ + ": " + text;
    }
    return Poll::Failed;
}

Path::Poll TcpPath::lost_errno(const char* call) {
    const int error = errno;
    Loss loss = Loss::Unreachable;
    if (error == ECONNRESET) {
        loss = Loss::Reset;
    } else if (error == EPIPE) {
        loss = Loss::Ended;
    } else if (error == ETIMEDOUT) {
        loss = Loss::TimedOut;
    }
    const std::string text = std::string(call) + ": " + std::strerror(error);
    return lost(loss, text.c_str());
}

// The receiver tells the sender why, if there is room for it: an end without a reason looks like a
// peer that is gone.
Path::Poll TcpPath::damaged() {
    if (role_ == Role::Receiver) {
        Control control;
        control.kind = Control::Kind::Damaged;
        (void)send(control);
    }
    return lost(Loss::Damaged, "bytes arrived damaged (checksum)");
}

Post TcpPath::post(const Chunk& chunk) {
    if (loss_ != Loss::None) {
        return Post::Failed;
    }
    if (header_left_ + data_left_ > 0) {
        const Poll flushed = flush();
        if (flushed == Poll::Failed) {
            return Post::Failed;
        }
        if (header_left_ + data_left_ > 0) {
            return Post::Again;
        }
    }
    wire::ChunkHeader header;
    header.chunk = chunk;
    if (checked_) {
        header.flags = wire::kFlagChecksum;
        header.checksum = crc32c(0, chunk.data, chunk.length);
    }
    wire::encode(header, header_);
    header_left_ = header_.size();
    data_ = chunk.data;
    data_left_ = chunk.length;
    out_message_ = chunk.message;
    return flush() == Poll::Failed ? Post::Failed : Post::Ok;
}

Path::Poll TcpPath::flush() {
    while (header_left_ + data_left_ > 0) {
        iovec parts[2];
        parts[0] = {header_.data() + header_.size() - header_left_, header_left_};
        parts[1] = {const_cast<std::byte*>(data_), data_left_};
        if (data_ == nullptr) {
            parts[1] = {const_cast<std::byte*>(kFiller.data()),
                        std::min(data_left_, kFiller.size())};
        }
        msghdr message{};
        message.msg_iov = header_left_ > 0 ? parts : parts + 1;
        message.msg_iovlen = (header_left_ > 0 ? 1U : 0U) + (data_left_ > 0 ? 1U : 0U);
        const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return would_block() ? Poll::Idle : lost_errno("send");
        }
        const std::size_t of_header = std::min(static_cast<std::size_t>(sent), header_left_);
        const std::size_t of_data = static_cast<std::size_t>(sent) - of_header;
        header_left_ -= of_header;
        data_left_ -= of_data;
        data_ = data_ == nullptr ? nullptr : data_ + of_data;
    }
    return Poll::Worked;
}

Post TcpPath::send(const Control& control) {
    if (loss_ != Loss::None) {
        return Post::Failed;
    }
    if (control_left_ > 0) {
        if (write_control() == Poll::Failed) {
            return Post::Failed;
        }
        if (control_left_ > 0) {
            return Post::Again;
        }
    }
    wire::encode(control, control_, checked_);
    control_left_ = control_.size();
    return write_control() == Poll::Failed ? Post::Failed : Post::Ok;
}

Path::Poll TcpPath::write_control() {
    while (control_left_ > 0) {
        const ssize_t sent = ::send(fd_.get(), control_.data() + control_.size() - control_left_,
                                    control_left_, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return would_block() ? Poll::Idle : lost_errno("send");
        }
        control_left_ -= static_cast<std::size_t>(sent);
    }
    return Poll::Worked;
}

Post TcpPath::send_bye() {
    if (loss_ != Loss::None) {
        return Post::Failed;
    }
    if (writing()) {
        return Post::Again;
    }
    wire::ChunkHeader header;
    header.type = wire::FrameType::Bye;
    header.flags = checked_ ? wire::kFlagChecksum : std::uint8_t{0};
    wire::encode(header, header_);
    header_left_ = header_.size();
    data_left_ = 0;
    return flush() == Poll::Failed ? Post::Failed : Post::Ok;
}

void TcpPath::abandon(std::uint64_t message) {
    if (header_left_ + data_left_ > 0 && out_message_ == message) {
        data_ = nullptr;
    }
}

Path::Poll TcpPath::poll(PathEvents& events, bool reading) {
    if (loss_ != Loss::None) {
        return Poll::Failed;
    }
    if (header_left_ + data_left_ > 0 && flush() == Poll::Failed) {
        return Poll::Failed;
    }
    if (control_left_ > 0 && write_control() == Poll::Failed) {
        return Poll::Failed;
    }
    if (!reading) {
        return Poll::Idle;
    }
    return role_ == Role::Sender ? read_controls(events) : read_chunks(events);
}

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
            if (wire::decode(std::span<const std::byte, wire::kControlBytes>(stage_.data() + at,
                                                                             wire::kControlBytes),
                             control, checked_) != wire::Decoded::Ok) {
                return checked_ ? damaged()
                                : lost(Loss::Protocol, "the peer sent what is no control frame");
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

// Takes one header, and with it a whole small chunk, off the stage.
TcpPath::Step TcpPath::take_header(PathEvents& events) {
    if (staged() < wire::kChunkBytes) {
        return Step::NeedMore;
    }
    wire::ChunkHeader header;
    if (wire::decode(std::span<const std::byte, wire::kChunkBytes>(stage_.data() + stage_begin_,
                                                                   wire::kChunkBytes),
                     header) != wire::Decoded::Ok ||
        (checked_ && (header.flags & wire::kFlagChecksum) == 0)) {
        if (checked_) {
            damaged();
        } else {
            lost(Loss::Protocol, "the peer sent what is no chunk header");
        }
        return Step::Failed;
    }
    if (header.type == wire::FrameType::Bye) {
        stage_begin_ += wire::kChunkBytes;
        events.peer_closed();
        return Step::Go;
    }
    const Chunk& chunk = header.chunk;
    const bool small = chunk.length <= kEagerBytes;
    if (small && staged() < wire::kChunkBytes + chunk.length) {
        return Step::NeedMore;
    }
    const std::size_t here = std::min<std::size_t>(staged() - wire::kChunkBytes, chunk.length);
    const std::byte* const payload = stage_.data() + stage_begin_ + wire::kChunkBytes;
    sum_ = checked_ ? crc32c(0, payload, here) : 0;
    if (checked_ && here == chunk.length && sum_ != header.checksum) {
        damaged();
        return Step::Failed;
    }
    std::byte* destination = nullptr;
    const PathEvents::Place place = events.place(chunk, destination);
    if (place == PathEvents::Place::Refuse) {
        lost(Loss::Protocol, "the peer broke the protocol");
        return Step::Failed;
    }
    if (place == PathEvents::Place::Store && here > 0) {
        std::memcpy(destination, payload, here);
    }
    stage_begin_ += wire::kChunkBytes + here;
    if (small) {
        events.arrived(chunk);
        return Step::Go;
    }
    chunk_ = chunk;
    expected_ = header.checksum;
    verify_ = checked_;
    payload_left_ = chunk.length - here;
    if (payload_left_ == 0) {
        events.arrived(chunk_);
    }
    return Step::Go;
}

// Reads the rest of a large chunk straight to where it belongs, and the next header behind it.
Path::Poll TcpPath::read_payload(PathEvents& events, bool& drained) {
    std::byte* destination = nullptr;
    const PathEvents::Place place = events.place(chunk_, destination);
    if (place == PathEvents::Place::Refuse) {
        return lost(Loss::Protocol, "the peer broke the protocol");
    }
    ssize_t got;
    std::size_t asked = payload_left_;
    if (place == PathEvents::Place::Discard) {
        // tcp(7): MSG_TRUNC throws the bytes away without copying them.
        verify_ = false;
        got = recv(fd_.get(), nullptr, payload_left_, MSG_DONTWAIT | MSG_TRUNC);
    } else {
        stage_begin_ = stage_end_ = 0;
        iovec parts[2];
        parts[0] = {destination + (chunk_.length - payload_left_), payload_left_};
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
        sum_ = crc32c(sum_, destination + (chunk_.length - payload_left_), of_chunk);
    }
    payload_left_ -= of_chunk;
    stage_end_ = stage_begin_ + static_cast<std::size_t>(got) - of_chunk;
    if (payload_left_ == 0 && verify_ && sum_ != expected_) {
        return damaged();
    }
    if (payload_left_ == 0) {
        events.arrived(chunk_);
    }
    return Poll::Worked;
}

Path::Poll TcpPath::read_chunks(PathEvents& events) {
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
        std::memmove(stage_.data(), stage_.data() + stage_begin_, staged());
        stage_end_ -= stage_begin_;
        stage_begin_ = 0;
        const std::size_t room = stage_.size() - stage_end_;
        const ssize_t got = recv(fd_.get(), stage_.data() + stage_end_, room, MSG_DONTWAIT);
        if (got < 0) {
            return would_block() ? result : lost_errno("receive");
        }
        if (got == 0) {
            return lost(Loss::Ended, "the peer closed the connection");
        }
        result = Poll::Worked;
        stage_end_ += static_cast<std::size_t>(got);
        drained = static_cast<std::size_t>(got) < room;
    }
    return result;
}

void TcpPath::close(Nanos limit) {
    if (!fd_) {
        return;
    }
    const Nanos deadline = steady_now() + limit;
    bool clean = loss_ == Loss::None && limit > 0;
    // Bytes that NCCL was told are sent must get out before the descriptor goes: closing a socket
    // with unread data makes the kernel drop what is still to be sent.
    while (clean) {
        if (header_left_ + data_left_ > 0) {
            clean = flush() != Poll::Failed;
        }
        if (control_left_ > 0) {
            clean = clean && write_control() != Poll::Failed;
        }
        int unsent = 0;
        if (!clean || (!writing() && (ioctl(fd_.get(), SIOCOUTQ, &unsent) != 0 || unsent == 0))) {
            break;
        }
        if (steady_now() >= deadline) {
            clean = false;
            break;
        }
        pollfd wait{fd_.get(), static_cast<short>(writing() ? POLLOUT : 0), 0};
        (void)::poll(&wait, 1, 1);
        if ((wait.revents & (POLLERR | POLLHUP)) != 0) {
            break;
        }
    }
    if (!clean) {
        const linger hard{1, 0};
        (void)setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    fd_.reset();
}

}  // namespace deft::net
