// SPDX-License-Identifier: Apache-2.0
#include "plugin/port_dialer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace deft::net {
namespace {

// Pairs of ports that this process has found not to reach each other. A connection does not wait
// for them, and all connections together try such a pair once in so long, from the end of the try
// before, and up to the double: an address that does not answer keeps the device's thread busy for
// a second (blocking_calls.h), and other pairs are to get through.
constexpr Nanos kTryAgain = 1500 * kMillisecond;
constexpr Nanos kTooLong = 1500 * kMillisecond;  // a neighbour's address takes 1.0 to 1.3 s
constexpr std::size_t kMostPairs = 256;

class DeadPairs {
public:
    static DeadPairs& process() {
        // Never destroyed: NCCL's threads may be inside while the process exits.
        static auto& pairs = *new DeadPairs;
        return pairs;
    }
    bool known(const deft_verbs_gid_t& own, const wire::Port& peer) {
        const MutexLock lock(mutex_);
        return find(own, peer) != pairs_.end();
    }
    // False: somebody else has tried it just now.
    bool may_try(const deft_verbs_gid_t& own, const wire::Port& peer, Nanos now) {
        const MutexLock lock(mutex_);
        const auto found = find(own, peer);
        if (found == pairs_.end()) {
            return true;
        }
        const bool may = now >= found->next;
        found->next = may ? now + kTooLong + kTryAgain : found->next;
        return may;
    }
    void dead(const deft_verbs_gid_t& own, const wire::Port& peer, Nanos now) {
        const MutexLock lock(mutex_);
        if (const auto found = find(own, peer); found != pairs_.end()) {
            found->next = now + 2 * kTryAgain;
        } else {
            if (pairs_.size() == kMostPairs) {
                pairs_.erase(pairs_.begin());
            }
            pairs_.push_back({own, peer.gid, now + kTryAgain});
        }
    }
    void alive(const deft_verbs_gid_t& own, const wire::Port& peer) {
        const MutexLock lock(mutex_);
        if (const auto found = find(own, peer); found != pairs_.end()) {
            pairs_.erase(found);
        }
    }

private:
    struct Pair {
        deft_verbs_gid_t own;
        std::array<std::uint8_t, 16> peer;
        Nanos next;
    };
    std::vector<Pair>::iterator find(const deft_verbs_gid_t& own, const wire::Port& peer)
        DEFT_REQUIRES(mutex_) {
        return std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
            return std::equal(std::begin(own.raw), std::end(own.raw), std::begin(pair.own.raw)) &&
                   pair.peer == peer.gid;
        });
    }

    Mutex mutex_;
    std::vector<Pair> pairs_ DEFT_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace

PortDialer::PortDialer(std::shared_ptr<const Port> port, const wire::Port& peer,
                       std::vector<std::unique_ptr<TcpDialer>> receptions)
    : port_(std::move(port)),
      peer_(peer),
      receptions_(std::move(receptions)),
      counters_(LinkStats::process().link(port_->name.c_str(), port_->kind)),
      description_(port_->name) {}

bool PortDialer::known_dead(const Port& port, const wire::Port& peer) {
    return port.carrier().down || DeadPairs::process().known(port.gid, peer);
}

void PortDialer::start(std::uint32_t incarnation, Nanos now) {
    cancel();
    if (port_->carrier().down) {
        failure_ = "its port is not active; tried again in the background";
        stage_ = Stage::Refused;
        return;
    }
    if (!DeadPairs::process().may_try(port_->gid, peer_, now)) {
        failure_ = "found unreachable before; tried again in the background";
        stage_ = Stage::Refused;
        return;
    }
    // The one that worked last has every second turn; the others share the rest.
    reception_ = preferred_;
    if (attempts_ % 2 == 1 && receptions_.size() > 1) {
        const std::size_t other = attempts_ / 2 % (receptions_.size() - 1);
        reception_ = other + (other >= preferred_ ? 1 : 0);
    }
    ++attempts_;
    receptions_[reception_]->start(incarnation, now);
    stage_ = Stage::Reception;
}

void PortDialer::cancel() {
    if (stage_ == Stage::Handshake) {
        failure_ = "the peer's port does not answer";
        if (steady_now() - began_ > kTooLong) {
            DeadPairs::process().dead(port_->gid, peer_, steady_now());
        }
    }
    handshake_.reset();
    for (auto& reception : receptions_) {
        reception->cancel();
    }
    stage_ = Stage::Idle;
}

bool PortDialer::reached(Nanos now) const {
    return stage_ == Stage::Reception && receptions_[reception_]->reached(now);
}

Dialer::Result PortDialer::fail(Result result, const std::string& why) {
    stage_ = Stage::Idle;  // which is no time-out
    cancel();
    failure_ = why;
    return result;
}

Dialer::Result PortDialer::poll(Nanos now, Connected& connected) {
    if (stage_ == Stage::Refused) {
        stage_ = Stage::Idle;
        return Result::Silent;
    }
    if (stage_ == Stage::Reception) {
        const Result result = poll_reception(now);
        if (result != Result::Connected) {
            return result;
        }
    }
    return stage_ == Stage::Handshake ? poll_handshake(connected) : Result::Pending;
}

Dialer::Result PortDialer::poll_reception(Nanos now) {
    TcpDialer& reception = *receptions_[reception_];
    welcome_ = {};
    const Result result = reception.poll(now, welcome_);
    switch (result) {
        case Result::Pending:
            return result;
        case Result::Connected:
            break;
        // The TCP paths will hear the same, if it is so.
        case Result::Fatal:
            return fail(Result::Failed, reception.failure());
        case Result::Silent:
        case Result::Failed:
        case Result::Refused:
        case Result::Closed:
            return fail(result, reception.failure());
    }
    begin_handshake(now);
    return result;
}

void PortDialer::begin_handshake(Nanos now) {
    TcpDialer& reception = *receptions_[reception_];
    handshake_ = port_->begin(PathRole::Sender, reception.connection(), false);
    description_ = port_->name + " by " + reception.describe();
    stage_ = Stage::Handshake;
    began_ = now;
}

Dialer::Result PortDialer::poll_handshake(Connected& connected) {
    std::unique_ptr<Path> path;
    switch (handshake_->poll(path)) {
        case Handshake::Result::Pending:
            return Result::Pending;
        case Handshake::Result::Failed:
            DeadPairs::process().dead(port_->gid, peer_, steady_now());
            return fail(Result::Failed, handshake_->failure());
        case Handshake::Result::Connected:
            break;
    }
    DeadPairs::process().alive(port_->gid, peer_);
    connected = std::move(welcome_);
    connected.path = std::move(path);
    handshake_.reset();
    preferred_ = reception_;
    attempts_ = 0;
    stage_ = Stage::Idle;
    return Result::Connected;
}

}  // namespace deft::net
