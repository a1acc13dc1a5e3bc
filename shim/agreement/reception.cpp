// SPDX-License-Identifier: Apache-2.0
// The agreement thread's wait for its connections, and who may come in.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "shim/agreement/leader_role.h"
#include "shim/agreement/service.h"
#include "topology/fair_room.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kMaxGuests = 256;
constexpr std::size_t kMaxEarly = 4096;
constexpr std::size_t kAcceptsPerTurn = 64;
constexpr auto kHelloLimit = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

void Service::wait(Clock::time_point now) {
    set_.clear();
    set_.push_back({wake_fd_.load(), POLLIN, 0});
    listening_at_ = set_.size();
    listening_ = 0;
    Clock::time_point due = kNever;
    {
        const Monitor::Lock lock(monitor_);
        // A full table of descriptors is waited out: those who come meanwhile stay in the kernel's
        // queue.
        if (now < accept_again_) {
            due = accept_again_;
        } else if (listener_ != nullptr && listener_->ours()) {
            listening_ = listener_->size();
            for (std::size_t i = 0; i < listening_; ++i) {
                set_.push_back({listener_->fd(i), POLLIN, 0});
            }
        }
    }
    for (Guest& guest : guests_) {
        guest.stream.gather(set_);
        due = std::min(due, guest.since + kHelloLimit);
    }
    for (Guest& guest : early_) {
        guest.stream.gather(set_);
    }
    for (Council* council : councils_) {
        council->core_->role->gather(set_);
        due = std::min(due, council->core_->role->due());
    }
    int timeout = -1;
    if (due != kNever) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
    if (::poll(set_.data(), static_cast<nfds_t>(set_.size()), timeout) <= 0) {
        for (pollfd& entry : set_) {
            entry.revents = 0;
        }
    }
    if (set_[0].revents != 0) {
        std::uint64_t count = 0;
        (void)!::read(set_[0].fd, &count, sizeof(count));
    }
    now = Clock::now();
    for (Council* council : councils_) {
        council->core_->role->ready(set_, now);
    }
    look_after_early();
    read_guests(now);
    accept_all(now);
}

void Service::accept_all(Clock::time_point now) {
    for (std::size_t i = 0; i < listening_; ++i) {
        if (set_[listening_at_ + i].revents == 0) {
            continue;
        }
        for (std::size_t accepted = 0; accepted < kAcceptsPerTurn; ++accepted) {
            sockaddr_storage storage{};
            socklen_t length = sizeof(storage);
            auto* const address = reinterpret_cast<sockaddr*>(&storage);
            UniqueFd fd(::accept4(set_[listening_at_ + i].fd, address, &length,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!fd) {
                if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                    accept_again_ = now + kAcceptPause;
                }
                break;
            }
            tune(fd.get());
            Guest guest{Stream(std::move(fd)), {}, now, {}};
            (void)from_sockaddr(address, guest.from, nullptr);
            // Who knows the protocol has said hello by now: it never waits among the others.
            if (hear_guest(guest, false)) {
                make_room();
                guests_.push_back(std::move(guest));
            }
        }
    }
}

void Service::make_room() {
    if (guests_.size() < kMaxGuests) {
        return;
    }
    const std::size_t victim =
        who_makes_way(guests_, [](const Guest& guest) -> const Address& { return guest.from; });
    guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(victim));
    strangers_.fetch_add(1, std::memory_order_relaxed);
}

void Service::read_guests(Clock::time_point now) {
    for (std::size_t i = 0; i < guests_.size();) {
        if (read_guest(guests_[i], now)) {
            ++i;
        } else {
            guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
}

// False when this one is dealt with, one way or another.
bool Service::read_guest(Guest& guest, Clock::time_point now) {
    const bool stale = now - guest.since >= kHelloLimit;
    if (guest.stream.ready(set_) == 0 && !stale) {
        return true;
    }
    return hear_guest(guest, stale);
}

// The same, of one that may have said something. stale: its time is over.
bool Service::hear_guest(Guest& guest, bool stale) {
    const bool alive = guest.stream.fill();
    wire::Header header;
    std::span<const std::byte> payload;
    switch (guest.stream.next(header, payload, wire::longest(wire::Type::Hello))) {
        case Stream::Next::Frame:
            if (header.type == wire::Type::Hello && wire::decode(payload, guest.hello)) {
                admit(std::move(guest), early_);
                return false;
            }
            break;
        case Stream::Next::None:
            if (alive && !stale) {
                return true;
            }
            break;
        case Stream::Next::Bad:
            if (guest.stream.other_version()) {
                DEFT_WARN_ONCE(
                    "a rank's deft speaks another protocol version than this one: install the same "
                    "release on all hosts");
            }
            break;
    }
    strangers_.fetch_add(1, std::memory_order_relaxed);
    DEFT_DEBUG("dropped a connection that did not say a proper hello");
    return false;
}

bool Service::leader_expected(const wire::Nonce& nonce) {
    const Monitor::Lock lock(monitor_);
    return std::none_of(issued_.begin(), issued_.end(), [&nonce](const Issued& issued) {
        return issued.leader != nullptr && wire::equal(issued.nonce, nonce);
    });
}

// Nothing is to come from them before their leader has: they have left, or are none of ours. Honest
// members come again. Those whose leader has just joined are left to it, which hears why they went.
void Service::look_after_early() {
    std::erase_if(early_, [this](const Guest& guest) {
        return guest.stream.ready(set_) != 0 && leader_expected(guest.hello.nonce);
    });
}

void Service::admit(Guest&& guest, std::deque<Guest>& early) {
    if (guest.stream.gone()) {
        return;  // its leader would take it for a member, and its second attempt for a twin
    }
    LeaderRole* leader = nullptr;
    bool known = false;
    bool over = false;
    {
        const Monitor::Lock lock(monitor_);
        for (const Issued& issued : issued_) {
            if (wire::equal(issued.nonce, guest.hello.nonce)) {
                known = issued.maker == ::getpid();
                over = issued.over;
                leader = issued.leader;
            }
        }
    }
    if (leader != nullptr) {
        leader->adopt(std::move(guest.stream), guest.hello);
    } else if (over) {
        (void)guest.stream.send(
            wire::Type::Verdict,
            wire::encode(wire::Verdict{false, "the leader has ended its communicator", true}));
    } else if (known) {
        // As with the leader: the same rank again, whose first connection broke.
        std::erase_if(early, [&guest](const Guest& other) {
            return other.hello.rank == guest.hello.rank &&
                   wire::equal(other.hello.nonce, guest.hello.nonce);
        });
        if (early.size() == kMaxEarly) {
            early.pop_front();
        }
        early.push_back(std::move(guest));
    } else {
        strangers_.fetch_add(1, std::memory_order_relaxed);
        DEFT_DEBUG("dropped a connection that did not know the secret of any communicator");
    }
}

}  // namespace deft::agreement
