// SPDX-License-Identifier: Apache-2.0
// The bytes of requests, and those of their replies.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "softdev/verbs/faults.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/requester.h"

namespace softdev::verbs {
namespace {

constexpr std::size_t kAtOnce = 256 * 1024;   // in one system call
constexpr std::size_t kInARow = 1024 * 1024;  // before others have their turn

wire::Request kind_of(ibv_wr_opcode opcode) {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE:
            return wire::Request::write;
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return wire::Request::write_imm;
        case IBV_WR_SEND:
            return wire::Request::send;
        case IBV_WR_SEND_WITH_IMM:
            return wire::Request::send_imm;
        case IBV_WR_RDMA_READ:
            return wire::Request::read;
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            return wire::Request::swap;
        default:
            return wire::Request::add;
    }
}

wire::RequestHeader header_of(const SendRequest& request, std::uint64_t sequence) {
    wire::RequestHeader header;
    const ibv_send_wr& wr = request.wr;
    header.kind = kind_of(wr.opcode);
    header.flags = (wr.send_flags & IBV_SEND_SOLICITED) != 0 ? wire::kSolicited : 0;
    header.length = static_cast<std::uint32_t>(request.length);
    header.imm = wr.imm_data;
    header.sequence = sequence;
    if (header.kind == wire::Request::swap || header.kind == wire::Request::add) {
        header.rkey = wr.wr.atomic.rkey;
        header.address = wr.wr.atomic.remote_addr;
        header.operand = wr.wr.atomic.compare_add;
        header.swap = wr.wr.atomic.swap;
    } else {
        header.rkey = wr.wr.rdma.rkey;
        header.address = wr.wr.rdma.remote_addr;
    }
    return header;
}

}  // namespace

void Requester::pump() {
    if (link_ != Link::open || qp_.now != IBV_QPS_RTS) {
        return;
    }
    std::size_t budget = kInARow;
    bool more = true;
    while (more && budget > 0 && (sending_ || begin_next())) {
        more = send_some(budget);
    }
    if (link_ == Link::open) {
        qp_.nic.watch(*this, sending_ || budget == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

// Finds the next request that may go out now, and puts its bytes together.
bool Requester::begin_next() {
    if (hold_ != Hold::none || qp_.now != IBV_QPS_RTS ||
        next_ - queue.first >= queue.requests.size()) {
        return false;
    }
    SendRequest& request = queue.at(next_);
    if (request.trouble != IBV_WC_SUCCESS) {
        return false;
    }
    if (request.fetches() && fetching_ >= qp_.attr.max_rd_atomic) {
        return false;
    }
    if ((request.wr.send_flags & IBV_SEND_FENCE) != 0 && fetching_ > 0) {
        return false;
    }
    header_ = header_of(request, next_);
    if (!prepare(request)) {
        if (next_ == queue.first) {
            fail(request.trouble);
        }
        return false;
    }
    hold_back(request);
    if (hold_ == Hold::late) {
        return false;
    }
    sending_ = true;
    return true;
}

// The addresses are looked up now, not when the request was posted, as the device does it.
bool Requester::prepare(SendRequest& request) {
    out_.clear();
    out_.add(&header_, sizeof header_);
    if (!request.inlined.empty()) {
        out_.add(request.inlined.data(), request.inlined.size());
        return true;
    }
    if ((request.wr.send_flags & IBV_SEND_INLINE) != 0) {
        return true;
    }
    for (std::size_t i = 0; i < request.sge_count; ++i) {
        const ibv_sge& sge = request.sges[i];
        char* const at = sge.length == 0
                             ? nullptr
                             : qp_.nic.memory.local(qp_.qp_base.pd, sge, request.fetches());
        if (sge.length != 0 && at == nullptr) {
            request.trouble = IBV_WC_LOC_PROT_ERR;
            report("QP %u, wr_id %lu: lkey 0x%x does not cover %u bytes at 0x%lx for %s",
                   qp_.qp_base.qp_num, request.wr.wr_id, sge.lkey, sge.length, sge.addr,
                   request.fetches() ? "writing" : "reading");
            return false;
        }
        if (!request.fetches()) {
            out_.add(at, sge.length);
        }
    }
    return true;
}

// Faults of the way to the peer: a copy that is lost, or one that is long on its way.
void Requester::hold_back(SendRequest& request) {
    if (request.length == 0 || request.fetches() || copied_ == next_) {
        return;
    }
    if (inject(Fault::resend)) {
        header_.flags |= wire::kLost;
        hold_ = Hold::resend;
        copied_ = next_;
        return;
    }
    if (!inject(Fault::late_write)) {
        return;
    }
    std::array<iovec, Pieces::kMost> parts;
    const std::size_t count = out_.next(parts.data(), SIZE_MAX);
    captured_.clear();
    for (std::size_t i = 0; i < count; ++i) {
        captured_.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
    }
    const auto wait = std::chrono::milliseconds(milliseconds(Fault::late_write));
    hold_ = Hold::late;
    hold_end_ = Clock::now() + wait;
    hold_timer_ = qp_.nic.later(wait, [this] {
        hold_timer_ = 0;
        hold_ = Hold::none;
        out_.clear();
        out_.add(captured_.data(), captured_.size());
        sending_ = true;
        pump();
    });
}

bool Requester::send_some(std::size_t& budget) {
    std::array<iovec, Pieces::kMost> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = out_.next(parts.data(), kAtOnce);
    const ssize_t sent = ::sendmsg(fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EFAULT) {  // unmapped under the device's eyes
            report("QP %u: memory of a posted request is not mapped any more", qp_.qp_base.qp_num);
            break_off(IBV_WC_LOC_PROT_ERR);
        } else if (errno != EAGAIN && errno != EINTR) {
            lose(Link::lost);
        }
        return false;
    }
    const auto bytes = static_cast<std::size_t>(sent);
    sent_bytes_ += bytes;
    budget -= std::min(budget, bytes);
    out_.advance(bytes);
    if (out_.left() == 0) {
        finish_frame();
    }
    return true;
}

void Requester::finish_frame() {
    sending_ = false;
    captured_.clear();
    if (hold_ == Hold::resend) {  // the same request again, read again from the program's memory
        hold_timer_ = qp_.nic.later(std::chrono::milliseconds(milliseconds(Fault::resend)), [this] {
            hold_timer_ = 0;
            hold_ = Hold::none;
            pump();
        });
        return;
    }
    if (queue.at(next_).fetches()) {
        ++fetching_;
    }
    ++next_;
}

void Requester::receive() {
    for (std::size_t turn = 0; turn < 16 && (link_ == Link::open || link_ == Link::greeting);
         ++turn) {
        if (!receive_some()) {
            return;
        }
    }
}

// False: the socket has nothing more now, or the connection has ended: lose() has seen to that.
bool Requester::receive_some() {
    std::array<iovec, Pieces::kMost> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    if (in_data_) {
        message.msg_iovlen = in_.next(parts.data(), kAtOnce);
    } else {
        parts[0] = {reinterpret_cast<char*>(&reply_) + reply_filled_,
                    sizeof reply_ - reply_filled_};
        message.msg_iovlen = 1;
    }
    const ssize_t got = ::recvmsg(fd.get(), &message, MSG_DONTWAIT);
    if (got <= 0) {
        const bool nothing = got < 0 && (errno == EAGAIN || errno == EINTR);
        if (!nothing) {
            lose(link_ == Link::greeting ? Link::idle : Link::lost);
        }
        return false;
    }
    last_progress_ = Clock::now();
    if (in_data_) {
        in_.advance(static_cast<std::size_t>(got));
        if (in_.left() == 0) {
            in_data_ = false;
            acknowledge(reply_.sequence);
        }
        return true;
    }
    reply_filled_ += static_cast<std::size_t>(got);
    if (reply_filled_ == sizeof reply_) {
        reply_filled_ = 0;
        take_reply();
    }
    return true;
}

void Requester::take_reply() {
    switch (reply_.kind) {
        case wire::Answer::accepted:
            link_ = Link::open;
            return;
        case wire::Answer::ack:
            acknowledge(reply_.sequence);
            return;
        case wire::Answer::nak:
            if (reply_.sequence > queue.first) {
                acknowledge(reply_.sequence - 1);
            }
            fail(static_cast<ibv_wc_status>(reply_.status));
            return;
        case wire::Answer::rnr:
            if (!not_ready_since_) {
                not_ready_since_ = last_progress_;
            }
            not_ready_wait_ = std::chrono::microseconds(10) * reply_.timer;
            arm_timer();
            return;
        case wire::Answer::data:
            take_data();
            return;
    }
    lose(Link::lost);  // it speaks another language
}

void Requester::take_data() {
    const std::uint64_t sequence = reply_.sequence;
    if (sequence < queue.first || sequence >= next_ || !queue.at(sequence).fetches() ||
        queue.at(sequence).length != reply_.length) {
        lose(Link::lost);
        return;
    }
    if (sequence > queue.first) {
        acknowledge(sequence - 1);
    }
    if (!queue.empty() && find_place_of_data(queue.at(sequence))) {
        in_data_ = in_.left() > 0;
        if (!in_data_) {
            acknowledge(sequence);
        }
    }
}

bool Requester::find_place_of_data(SendRequest& request) {
    in_.clear();
    for (std::size_t i = 0; i < request.sge_count; ++i) {
        const ibv_sge& sge = request.sges[i];
        if (sge.length == 0) {
            continue;
        }
        char* const at = qp_.nic.memory.local(qp_.qp_base.pd, sge, true);
        if (at == nullptr) {
            fail(IBV_WC_LOC_PROT_ERR);
            return false;
        }
        in_.add(at, sge.length);
    }
    return true;
}

}  // namespace softdev::verbs
