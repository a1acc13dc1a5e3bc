// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/tcp_path.h"

#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/core/crc32c.h"

namespace deft::net {
namespace {

// Sent in place of bytes that are no longer there; the receiver has the message and looks away.
constexpr std::array<std::byte, 16384> kFiller{};

bool of_a_connection(int error) {
    return error == ECONNRESET || error == ETIMEDOUT || error == EHOSTUNREACH ||
           error == ENETUNREACH || error == ENETDOWN || error == ECONNREFUSED ||
           error == ECONNABORTED;
}

// A socket has room, as poll(2) says, but none for pages: so many times in a row, and it is the
// call that is refused.
constexpr int kMostAgain = 8;
constexpr int kMostInput = 64;  // reads of control frames at closing; the peer may go on for ever

}  // namespace

TcpPath::TcpPath(UniqueFd fd, Role role, std::string description, Options options)
    : fd_(std::move(fd)),
      role_(role),
      checked_(options.checked),
      look_first_(options.look_first && role == Role::Receiver),
      lent_(options.lent && role == Role::Receiver),
      description_(std::move(description)),
      pages_(std::move(options.pages)),
      losses_(options.losses),
      unverified_(checked_ && role == Role::Receiver ? new std::byte[kFlagged] : nullptr) {
    const int from = 0;  // socket(7)
    const bool further =
        look_first_ && setsockopt(fd_.get(), SOL_SOCKET, SO_PEEK_OFF, &from, sizeof(from)) == 0;
    peeked_.most = further ? options.looks : 1;
}

bool TcpPath::would_block() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

Path::Poll TcpPath::lost(Loss loss, const char* text) {
    if (loss_ == Loss::None) {
        loss_ = loss;
        failure_ = description_ + ": " + text;
    }
    return Poll::Failed;
}

// On one host the bytes of a job that has given up may have changed while they waited here. It
// resets the connection before it lets go of them, so that what was read before that is good.
bool TcpPath::taken_back() {
    pollfd state{fd_.get(), 0, 0};
    if (!lent_ || ::poll(&state, 1, 0) <= 0) {
        return false;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    (void)getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error == 0 ? ECONNRESET : error;
    lost_errno("receive");
    return true;
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

void TcpPath::begin_frame(const wire::ChunkHeader& header) {
    wire::encode(header, std::span(header_).first<wire::kChunkBytes>());
    header_end_ = header_left_ = wire::kChunkBytes;
    data_left_ = 0;
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
    header.type = chunk.message == kProbe ? wire::FrameType::Probe : wire::FrameType::Chunk;
    if (checked_) {
        header.flags = wire::kFlagChecksum;
        header.checksum = chunk.data == nullptr ? 0 : crc32c(0, chunk.data, chunk.length);
    }
    begin_frame(header);
    if (chunk.length <= header_.size() - wire::kChunkBytes) {
        if (chunk.length > 0) {
            std::memcpy(header_.data() + wire::kChunkBytes, chunk.data, chunk.length);
        }
        header_end_ = header_left_ = wire::kChunkBytes + chunk.length;
    } else {
        data_ = chunk.data;
        data_left_ = chunk.length;
    }
    out_message_ = chunk.message;
    lend_ = !chunk.kept;
    return flush() == Poll::Failed ? Post::Failed : Post::Ok;
}

Path::Poll TcpPath::flush() {
    while (header_left_ + data_left_ > 0) {
        const bool by_pages =
            lend_ && pages_ != nullptr && data_ != nullptr && data_left_ >= PagePipes::kWorthwhile;
        const ssize_t sent = by_pages ? send_pages() : send_copy();
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

ssize_t TcpPath::send_copy() {
    std::byte* const header = header_.data() + header_end_ - header_left_;
    iovec parts[2];
    parts[0] = {header, header_left_};
    parts[1] = {const_cast<std::byte*>(data_), data_left_};
    if (data_ == nullptr) {
        parts[1] = {const_cast<std::byte*>(kFiller.data()), std::min(data_left_, kFiller.size())};
    }
    msghdr message{};
    message.msg_iov = header_left_ > 0 ? parts : parts + 1;
    message.msg_iovlen = (header_left_ > 0 ? 1U : 0U) + (data_left_ > 0 ? 1U : 0U);
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    return data_left_ == 0 ? ::send(fd_.get(), header, header_left_, flags)
                           : sendmsg(fd_.get(), &message, flags);
}

ssize_t TcpPath::send_pages() {
    if (full_) {
        pollfd room{fd_.get(), POLLOUT, 0};
        if (::poll(&room, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        full_ = false;
    }
    if (header_left_ > 0) {  // is used anew before the kernel is done with it
        return ::send(fd_.get(), header_.data() + header_end_ - header_left_, header_left_,
                      MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
    }
    ssize_t sent = pages_->send(fd_.get(), data_, data_left_);
    if (sent >= 0) {
        again_ = 0;
        return sent;
    }
    // A socket that has just had room, and has none for pages again and again: nor has it any then.
    const bool stuck = would_block() && ++again_ >= kMostAgain;
    if (would_block() && !stuck) {
        full_ = true;
        return sent;
    }
    const int why = errno;
    again_ = 0;
    sent = send_copy();
    const bool goes = sent >= 0 || would_block();
    if (why == ENOTSUP) {
        pages_.reset();
    } else if (stuck ? sent > 0 : why != EBUSY && goes) {
        PagePipes::give_up(why);  // the connection was not what is wrong
        pages_.reset();
    } else if (!goes && of_a_connection(why)) {
        errno = why;  // a socket tells its error once, then only EPIPE
    }
    return sent;
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
    wire::encode(control, control_);
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

// A frame without payload.
Post TcpPath::send_empty(const wire::ChunkHeader& header) {
    if (loss_ != Loss::None) {
        return Post::Failed;
    }
    if (writing()) {
        return Post::Again;
    }
    begin_frame(header);
    out_message_ = kProbe;  // none's: there is nothing to abandon
    return flush() == Poll::Failed ? Post::Failed : Post::Ok;
}

Post TcpPath::send_bye() {
    wire::ChunkHeader header;
    header.type = wire::FrameType::Bye;
    return send_empty(header);
}

Post TcpPath::ask_fence(std::uint16_t path, std::uint32_t incarnation) {
    wire::ChunkHeader header;
    header.type = wire::FrameType::Fence;
    header.chunk.index = path;
    header.chunk.message = incarnation;
    return send_empty(header);
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

void TcpPath::reset() {
    const sockaddr nowhere{AF_UNSPEC, {}};  // connect(2)
    (void)::connect(fd_.get(), &nowhere, sizeof(nowhere));
}

bool TcpPath::retract() {
    if (!fd_ || inherited()) {
        return true;
    }
    if (!retracted_) {
        reset();
        retracted_ = true;
    }
    // Packets that wait in the interface's queue are made of the same memory, and the reset waits
    // behind them.
    std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
    socklen_t length = sizeof(memory);
    return getsockopt(fd_.get(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length) != 0 ||
           memory[SK_MEMINFO_WMEM_ALLOC] == 0;
}

Nanos TcpPath::silence() const {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (!fd_ || getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
        return 0;
    }
    return std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) * kMillisecond;
}

void TcpPath::look_after(Nanos now) {
    constexpr Nanos kLookInterval = 100 * kMillisecond;
    if (!losses_.over() && now >= next_look_) {
        next_look_ = now + kLookInterval;
        losses_.look(fd_.get());
    }
}

// A socket that is closed with unread bytes resets the connection, and with it what is still to be
// sent. A receiver with unread messages means to: they were not taken.
void TcpPath::throw_away_input() {
    (void)take_looked_at();
    std::array<std::byte, 4096> bytes;
    for (int reads = 0; role_ == Role::Sender && reads < kMostInput; ++reads) {
        if (recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) <= 0) {
            return;
        }
    }
}

bool TcpPath::drained() const {
    int unsent = 0;
    return !writing() && (ioctl(fd_.get(), SIOCOUTQ, &unsent) != 0 || unsent == 0);
}

void TcpPath::leave_to_kernel() {
    const int system = 0;
    (void)setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &system, sizeof(system));
}

void TcpPath::close(Nanos limit) {
    if (!fd_) {
        return;
    }
    if (inherited()) {
        fd_.reset();
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
        if (!clean || drained()) {
            break;
        }
        if (steady_now() >= deadline) {
            clean = !writing();  // the kernel has it all and goes on trying
            break;
        }
        pollfd wait{fd_.get(), static_cast<short>(writing() ? POLLOUT : 0), 0};
        (void)::poll(&wait, 1, 1);
        if ((wait.revents & (POLLERR | POLLHUP)) != 0) {
            break;
        }
    }
    // Said on the connection, not by letting go of the descriptor: a process that the job has
    // forked (a data loader) may hold it, too.
    if (clean) {
        leave_to_kernel();
        throw_away_input();
        (void)::shutdown(fd_.get(), SHUT_WR);
    } else {
        reset();
    }
    fd_.reset();
}

}  // namespace deft::net
