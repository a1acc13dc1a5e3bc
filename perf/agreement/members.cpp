// SPDX-License-Identifier: Apache-2.0
#include "perf/agreement/members.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "shim/agreement/seal.h"

namespace deft::agreement_scale {
namespace {

constexpr int kConnectsPerTurn = 64;
constexpr std::size_t kReadSize = 64 * 1024;

}  // namespace

Members::Members(const Shape& shape, const wire::Trailer& trailer, const wire::Hello& like)
    : shape_(shape), trailer_(trailer), hello_(like), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (int rank = 1; rank < shape_.ranks; ++rank) {
        // Rank 0, the leader, fills the first place of the first host.
        if (links_.empty() || rank % shape_.per_link == 0) {
            links_.emplace_back();
        }
        links_.back().ranks.push_back(static_cast<std::uint32_t>(rank));
    }
}

bool Members::connect_some() {
    const wire::Endpoint& endpoint = trailer_.endpoints[0];
    for (int i = 0; i < kConnectsPerTurn && connected_ < links_.size(); ++i) {
        Link& link = links_[connected_];
        UniqueFd fd(::socket(endpoint.address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_storage storage;
        const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
        if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
            std::perror("agreement_scale: connect");
            return false;
        }
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = connected_;
        if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
            return false;
        }
        link.fd = std::move(fd);
        for (const std::uint32_t rank : link.ranks) {
            hello_.rank = rank;
            send(link, wire::Type::Hello, rank, wire::encode(hello_));
        }
        flush(link);
        ++connected_;
    }
    return connected_ < links_.size();
}

void Members::turn(int milliseconds) {
    std::array<epoll_event, 256> events;
    const int count =
        ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
    for (int i = 0; i < count; ++i) {
        Link& link = links_[events[static_cast<std::size_t>(i)].data.u64];
        flush(link);
        read(link);
    }
}

void Members::report() {
    report(std::vector<std::byte>(shape_.report_bytes));
}

void Members::report(std::span<const std::byte> payload) {
    const int step = std::max(1, shape_.ranks / std::max(1, shape_.reporters));
    for (Link& link : links_) {
        for (const std::uint32_t rank : link.ranks) {
            if (rank % static_cast<std::uint32_t>(step) == 0 && rank != silent_) {
                send(link, wire::Type::Report, rank, payload);
            }
        }
        flush(link);
    }
}

void Members::cut_from(std::uint32_t rank) {
    constexpr linger kAtOnce{1, 0};  // reset: not the end of a process
    for (Link& link : links_) {
        if (link.ranks.back() >= rank) {
            (void)::setsockopt(link.fd.get(), SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof kAtOnce);
            link.fd.reset();
        }
    }
}

bool Members::committed(std::uint32_t rank, std::uint64_t serial) const {
    return rank != silent_ && link_of(rank).committed == serial;
}

const Members::Link& Members::link_of(std::uint32_t rank) const {
    return *std::lower_bound(
        links_.begin(), links_.end(), rank,
        [](const Link& link, std::uint32_t wanted) { return link.ranks.back() < wanted; });
}

void Members::send(Link& link, wire::Type type, std::uint32_t rank,
                   std::span<const std::byte> payload) {
    const wire::Frame frame =
        wire::make_frame(type, wire::council_of(trailer_.nonce), rank, payload);
    link.out.insert(link.out.end(), frame->begin(), frame->end());
}

void Members::flush(Link& link) {
    std::size_t sent = 0;
    while (link.fd && sent < link.out.size()) {
        const ssize_t more = ::send(link.fd.get(), link.out.data() + sent, link.out.size() - sent,
                                    MSG_NOSIGNAL | MSG_DONTWAIT);
        if (more <= 0) {
            break;
        }
        sent += static_cast<std::size_t>(more);
    }
    link.out.erase(link.out.begin(), link.out.begin() + static_cast<std::ptrdiff_t>(sent));
}

void Members::read(Link& link) {
    static std::array<std::byte, kReadSize> chunk;
    const ssize_t got =
        link.fd ? ::recv(link.fd.get(), chunk.data(), chunk.size(), MSG_DONTWAIT) : 0;
    if (got > 0) {
        link.in.insert(link.in.end(), chunk.begin(), chunk.begin() + got);
    } else if (link.fd && (got == 0 || errno != EAGAIN)) {
        link.fd.reset();
        link.closed = true;
        ++lost_;
        return;
    }
    while (next(link)) {
    }
    flush(link);
    link.in.erase(link.in.begin(), link.in.begin() + static_cast<std::ptrdiff_t>(link.taken));
    link.taken = 0;
}

// False: no whole frame is there.
bool Members::next(Link& link) {
    const std::span<const std::byte> rest = std::span<const std::byte>(link.in).subspan(link.taken);
    wire::Header header;
    if (rest.size() < wire::kHeaderBytes ||
        wire::decode(rest.first<wire::kHeaderBytes>(), header) != wire::Decoded::Ok) {
        return false;
    }
    const std::size_t size =
        wire::kHeaderBytes + header.length + agreement::Seal::process().bytes();
    if (rest.size() < size) {
        return false;
    }
    link.taken += size;
    take(link, header, rest.subspan(wire::kHeaderBytes, header.length));
    return true;
}

void Members::take(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    const int ranks = static_cast<int>(link.ranks.size());
    if (header.type == wire::Type::AllHere) {
        for (const std::uint32_t rank : link.ranks) {
            send(link, wire::Type::Ack, rank, {});
        }
    } else if (header.type == wire::Type::Verdict) {
        wire::Verdict verdict;
        verdicts_ += wire::decode(payload, verdict) && verdict.on ? ranks : 0;
    } else if (header.type == wire::Type::Decision) {
        decisions_ += ranks;
        wire::Word word;
        if (wire::decode(payload, word) && word.yes) {
            link.committed = word.serial;
        }
    } else if (header.type == wire::Type::Closed) {
        link.closed = true;
    } else if (header.type == wire::Type::Prepare) {
        wire::Prepare prepare;
        if (wire::decode(payload, prepare)) {
            const std::uint64_t digest =
                wire::digest_of(prepare.serial, prepare.switch_call, prepare.body);
            for (const std::uint32_t rank : link.ranks) {
                if (rank != silent_) {
                    send(link, wire::Type::Answer, rank,
                         wire::encode(wire::Word{prepare.serial, true, digest}));
                }
            }
        }
    }
}

}  // namespace deft::agreement_scale
