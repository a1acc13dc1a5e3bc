// SPDX-License-Identifier: Apache-2.0
// The connection, the receive queue and what comes over the wire; responder_requests.cpp carries
// requests out.
#include "softdev/verbs/responder.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "softdev/verbs/ghost.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"

namespace softdev::verbs {
namespace {

constexpr std::size_t kAtOnce = 256 * 1024;
constexpr std::size_t kInARow = 1024 * 1024;

}  // namespace

void Responder::adopt(deft::UniqueFd socket) {
    fd = std::move(socket);
    phase_ = Phase::header;
    filled_ = 0;
    started_ = mute_ = false;
    Answer hello;
    hello.reply.kind = wire::Answer::accepted;
    answer(hello);
    if (send_answers()) {
        watch();
    }
}

void Responder::watch() {
    const unsigned in = phase_ == Phase::blocked ? 0U : unsigned{EPOLLIN};
    qp_.nic.watch(*this, in | (answers_.empty() ? 0U : unsigned{EPOLLOUT}));
}

void Responder::ready(unsigned events) {
    if (phase_ == Phase::blocked && (events & (EPOLLHUP | EPOLLERR)) != 0) {
        close();
        return;
    }
    std::size_t budget = kInARow;
    while (budget > 0 && phase_ != Phase::blocked && receive_some(budget)) {
    }
    if (linked() && send_answers()) {
        watch();
    }
}

// False: the socket has nothing more now, or the connection has ended: by its peer, or because what
// came was rejected. linked() tells the two apart.
bool Responder::receive_some(std::size_t& budget) {
    std::array<iovec, Pieces::kMost + 1> parts;
    std::size_t count = 0;
    std::size_t wanted = 0;
    if (phase_ == Phase::payload) {
        wanted = std::min(pieces_.left(), kAtOnce);
        count = pieces_.next(parts.data(), kAtOnce);
    }
    // The next header comes along: its place is free as soon as the payload is complete.
    wire::RequestHeader following;
    const bool header_too = phase_ == Phase::payload && wanted == pieces_.left();
    if (phase_ == Phase::header) {
        parts[count++] = {reinterpret_cast<char*>(&header_) + filled_, sizeof header_ - filled_};
    } else if (header_too) {
        parts[count++] = {&following, sizeof following};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t got = ::recvmsg(fd.get(), &message, MSG_DONTWAIT);
    if (got <= 0) {
        if (got < 0 && errno == EFAULT) {
            report("QP %u: memory that a peer writes to is not mapped any more",
                   qp_.qp_base.qp_num);
            reject(IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            close();  // the peer is gone: nothing tells a queue pair so
        }
        return false;
    }
    const auto bytes = static_cast<std::size_t>(got);
    budget -= std::min(budget, bytes);
    if (phase_ == Phase::header) {
        filled_ += bytes;
        if (filled_ == sizeof header_) {
            begin_request();
        }
        return linked();
    }
    pieces_.advance(std::min(bytes, wanted));
    if (pieces_.left() == 0) {
        finish_request();
        if (linked() && bytes > wanted) {
            header_ = following;
            filled_ = bytes - wanted;
            if (filled_ == sizeof header_) {
                begin_request();
            }
        }
    }
    return linked();
}

void Responder::close() {
    place_held();
    qp_.nic.cancel(held_timer_);
    qp_.nic.cancel(not_ready_timer_);
    held_timer_ = not_ready_timer_ = 0;
    qp_.nic.forget(*this);
    fd.reset();
    phase_ = Phase::header;
    filled_ = 0;
    pieces_.clear();
    aside_.clear();
    answers_.clear();
}

void Responder::clear() {
    requests.clear();
    freed.store(posted_);
}

int Responder::check(const Qp& qp, const ibv_recv_wr& wr) const {
    const std::uint32_t number = qp.qp_base.qp_num;
    if (qp.now == IBV_QPS_RESET) {
        return refuse(EINVAL, "ibv_post_recv: QP %u is in state RESET", number);
    }
    if (posted_ - freed.load(std::memory_order_acquire) >= qp.init.cap.max_recv_wr) {
        return refuse(ENOMEM, "ibv_post_recv: QP %u: the receive queue is full (%u)", number,
                      qp.init.cap.max_recv_wr);
    }
    if (wr.num_sge < 0 || static_cast<unsigned>(wr.num_sge) > qp.init.cap.max_recv_sge ||
        (wr.num_sge > 0 && wr.sg_list == nullptr)) {
        return refuse(EINVAL, "ibv_post_recv: QP %u: %d entries, the limit is %u", number,
                      wr.num_sge, qp.init.cap.max_recv_sge);
    }
    return 0;
}

ReceiveRequest Responder::make(const Qp& /*qp*/, const ibv_recv_wr& wr) {
    ReceiveRequest made;
    made.wr_id = wr.wr_id;
    made.sge_count = static_cast<std::size_t>(wr.num_sge);
    std::copy_n(wr.sg_list, made.sge_count, made.sges.begin());
    made.number = ++posted_;
    return made;
}

void Responder::resume() {
    if (phase_ != Phase::blocked || requests.empty()) {
        return;
    }
    phase_ = Phase::header;
    qp_.nic.cancel(not_ready_timer_);
    not_ready_timer_ = 0;
    begin_request();
    if (linked() && send_answers()) {
        watch();
    }
}

void Responder::region_gone(const Region& region) {
    if (linked() && phase_ == Phase::payload && pieces_.touches(region.host, region.length)) {
        reject(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
}

void Responder::answer(const Answer& answer) {
    if (!mute_) {
        answers_.push_back(answer);
    }
}

// False: there is no connection any more. True: all answers are sent, or the socket takes no more
// now and the rest waits in answers_.
bool Responder::send_answers() {
    while (!answers_.empty()) {
        if (!send_answer(answers_.front())) {
            return linked();
        }
        answers_.pop_front();
    }
    return true;
}

// True: all of it is in the socket. False: the socket takes no more now; or the connection has been
// closed, and linked() says so.
bool Responder::send_answer(Answer& answer) {
    const std::uint64_t whole = sizeof answer.reply + answer.reply.length;
    while (answer.sent < whole) {
        Pieces rest;
        rest.add(&answer.reply, sizeof answer.reply);
        if (answer.reply.kind == wire::Answer::data) {
            char* from = reinterpret_cast<char*>(&answer.value);
            if (answer.rkey != 0 && answer.reply.length > 0) {
                from = qp_.nic.memory.remote(qp_.qp_base.pd, answer.rkey, answer.address,
                                             answer.reply.length, IBV_ACCESS_REMOTE_READ);
            }
            if (from == nullptr) {  // taken back since the request was checked
                qp_.event(IBV_EVENT_QP_ACCESS_ERR);
                qp_.enter_error();
                return false;
            }
            rest.add(from, answer.reply.length);
        }
        rest.advance(answer.sent);
        std::array<iovec, Pieces::kMost> parts;
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = rest.next(parts.data(), kAtOnce);
        const ssize_t sent = ::sendmsg(fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                close();
            }
            return false;
        }
        answer.sent += static_cast<std::uint64_t>(sent);
    }
    return true;
}

}  // namespace softdev::verbs
