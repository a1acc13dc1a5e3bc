// SPDX-License-Identifier: Apache-2.0
// Connection, time-outs and the queue's completions; requester_frames.cpp has the bytes.
#include "softdev/verbs/requester.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "softdev/verbs/faults.h"
#include "softdev/verbs/ghost.h"
#include "softdev/verbs/queue_pair.h"

namespace softdev::verbs {
namespace {

// A small request is sent by the thread that posts it: the device's need not wake up for it.
constexpr std::uint64_t kSentByPoster = 8192;
constexpr int kForEver = 7;  // rnr_retry

// Between two tries to reach a peer that is not ready.
constexpr auto kTryAgain = std::chrono::milliseconds(5);

}  // namespace

void Requester::start() {
    last_progress_ = Clock::now();
    connect();
}

void Requester::posted() {
    const SendRequest& request = queue.requests.back();
    if (queue.requests.size() == 1) {
        last_progress_ = Clock::now();
    }
    arm_timer();
    if (link_ == Link::idle) {
        connect();
    } else if (link_ == Link::open && (sending_ || request.length > kSentByPoster)) {
        qp_.nic.watch(*this, EPOLLIN | EPOLLOUT);
    } else {
        pump();
    }
}

int Requester::open_socket() {
    if (!qp_.own || qp_.own->family() != qp_.peer.family()) {
        return ENETUNREACH;
    }
    fd.reset(::socket(qp_.own->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const std::string& netdev = qp_.port().settings().netdev;
    const int yes = 1;
    const int traffic_class = qp_.attr.ah_attr.grh.traffic_class;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    // Where the kernel lets only root do that, the address alone chooses the netdev. What a device
    // sends to itself never leaves it.
    if (!qp_.own->same_host(qp_.peer)) {
        ::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, netdev.c_str(),
                     static_cast<socklen_t>(netdev.size() + 1));
    }
    const bool four = qp_.own->family() == AF_INET;
    ::setsockopt(fd.get(), four ? IPPROTO_IP : IPPROTO_IPV6, four ? IP_TOS : IPV6_TCLASS,
                 &traffic_class, sizeof traffic_class);
    Address target = qp_.peer;
    target.set_port(static_cast<std::uint16_t>(qp_.attr.dest_qp_num >> 8));
    if (!fd || ::bind(fd.get(), qp_.own->get(), qp_.own->length) != 0 ||
        (::connect(fd.get(), target.get(), target.length) != 0 && errno != EINPROGRESS)) {
        return errno;
    }
    return 0;
}

void Requester::connect() {
    link_ = Link::connecting;
    if (open_socket() != 0) {
        lose(Link::idle);
        return;
    }
    qp_.nic.watch(*this, EPOLLOUT);
}

void Requester::greet() {
    int error = 0;
    socklen_t length = sizeof error;
    wire::Hello hello;
    hello.source_qpn = qp_.qp_base.qp_num;
    hello.target_qpn = qp_.attr.dest_qp_num;
    hello.psn = qp_.attr.sq_psn;
    hello.ece = qp_.ece;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0 ||
        ::send(fd.get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof hello) {
        lose(Link::idle);
        return;
    }
    link_ = Link::greeting;
    qp_.nic.watch(*this, EPOLLIN);
}

// idle: another try soon, as a real device sends its packet again. lost: packets of a connection
// that was open are answered by nobody, until the time-out.
void Requester::lose(Link next) {
    qp_.nic.forget(*this);
    fd.reset();
    link_ = next;
    reply_filled_ = 0;
    not_ready_since_.reset();  // a peer that is gone is not one that has no receive request
    if (next == Link::idle && hold_timer_ == 0) {
        hold_timer_ = qp_.nic.later(kTryAgain, [this] {
            hold_timer_ = 0;
            if (link_ == Link::idle && !queue.empty()) {
                connect();
            }
        });
    }
}

void Requester::close() {
    qp_.nic.cancel(timer_);
    qp_.nic.cancel(hold_timer_);
    timer_ = hold_timer_ = 0;
    if (sending_ && !captured_.empty()) {  // some of it is on its way
        captured_.erase(0, captured_.size() - out_.left());
    }
    const bool unfinished = sending_ || next_ > queue.first || hold_ == Hold::late;
    if (link_ == Link::open && unfinished) {
        const auto wait = hold_ == Hold::late ? hold_end_ - Clock::now() : Clock::duration{0};
        Ghost::haunt(qp_.nic, qp_.nic.release(*this), std::move(captured_),
                     std::max(wait, Clock::duration{0}));
    }
    qp_.nic.forget(*this);
    fd.reset();
    captured_.clear();
    link_ = Link::idle;
    sending_ = in_data_ = false;
    hold_ = Hold::none;
    out_.clear();
    in_.clear();
    reply_filled_ = 0;
    fetching_ = 0;
    next_ = queue.first + queue.requests.size();  // the caller empties the queue
    not_ready_since_.reset();
    sent_bytes_ = confirmed_bytes_ = 0;
}

void Requester::ready(unsigned events) {
    switch (link_) {
        case Link::connecting:
            greet();
            return;
        case Link::greeting:
        case Link::open:
            if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
                receive();
            }
            if (link_ == Link::open) {
                pump();
            }
            return;
        case Link::idle:
        case Link::lost:
            return;
    }
}

void Requester::acknowledge(std::uint64_t sequence) {
    last_progress_ = Clock::now();
    not_ready_since_.reset();
    while (!queue.empty() && queue.first <= sequence && queue.first < next_) {
        const SendRequest& done = queue.requests.front();
        if (done.fetches()) {
            --fetching_;
        }
        const bool room = !done.signaled || qp_.complete_send(done, IBV_WC_SUCCESS);
        queue.requests.pop_front();
        ++queue.first;
        if (!room) {
            qp_.cq_overrun(qp_.qp_base.send_cq);
            return;
        }
    }
    // What went wrong with a request is told when all before it are done.
    if (!queue.empty() && queue.requests.front().trouble != IBV_WC_SUCCESS) {
        fail(queue.requests.front().trouble);
    }
}

void Requester::fail(ibv_wc_status status) {
    qp_.enter_error(status);
}

void Requester::region_gone(const Region& region) {
    const bool reading = sending_ && captured_.empty() && out_.touches(region.host, region.length);
    const bool writing = in_data_ && in_.touches(region.host, region.length);
    if (writing) {  // it is the oldest: what was before it is done when its data come
        fail(IBV_WC_LOC_PROT_ERR);
    } else if (reading) {
        break_off(IBV_WC_LOC_PROT_ERR);
    }
}

// The request that is being sent cannot go on, nor can any behind it. What went wrong is told when
// all before it are done.
void Requester::break_off(ibv_wc_status status) {
    sending_ = false;
    hold_ = Hold::none;
    out_.clear();
    queue.at(next_).trouble = status;
    if (next_ == queue.first) {
        fail(status);
    }
}

void Requester::arm_timer() {
    if (timer_ != 0 || queue.empty()) {
        return;
    }
    const auto tick = std::clamp<Clock::duration>(
        qp_.retry_time() / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(100));
    timer_ = qp_.nic.later(tick, [this] {
        timer_ = 0;
        check_progress();
    });
}

void Requester::check_progress() {
    if (queue.empty()) {
        return;
    }
    const auto now = Clock::now();
    int unsent = 0;
    // Every packet that is acknowledged restarts the timer, not every request.
    if (link_ == Link::open && ::ioctl(fd.get(), SIOCOUTQ, &unsent) == 0 &&
        sent_bytes_ - static_cast<std::uint64_t>(unsent) > confirmed_bytes_) {
        confirmed_bytes_ = sent_bytes_ - static_cast<std::uint64_t>(unsent);
        last_progress_ = now;
    }
    if (not_ready_since_) {
        const int tries = qp_.attr.rnr_retry;
        if (tries < kForEver && now - *not_ready_since_ > (tries + 1) * not_ready_wait_) {
            fail(IBV_WC_RNR_RETRY_EXC_ERR);
            return;
        }
    }
    if (now - last_progress_ > qp_.retry_time()) {
        fail(IBV_WC_RETRY_EXC_ERR);
        return;
    }
    arm_timer();
}

}  // namespace softdev::verbs
