// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/tcp_path_source.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "plugin/tcp/carrier_watch.h"
#include "plugin/tcp/tcp_path.h"
#include "plugin/tcp/tcp_socket.h"

namespace deft::net {
namespace {

// The receiver of a single path does not end it: the sender may have been told that small messages
// are done, and may not be there any more to send them again. A newer connection takes its place.
Nanos receiver_dead_after(std::size_t paths, Nanos link_timeout) {
    return paths == 1 ? link_timeout / 4 * 3 : std::min(kDeadAfter, link_timeout / 2);
}

}  // namespace

TcpPathSource::TcpPathSource(std::unique_ptr<Admission> admission, Admission::Guest first,
                             Nanos link_timeout, std::vector<std::int64_t> port_speeds)
    : admission_(std::move(admission)),
      first_(std::move(first)),
      port_speeds_(std::move(port_speeds)),
      have_first_(true),
      dead_after_(receiver_dead_after(first_.hello.paths, link_timeout)) {}

bool TcpPathSource::next(Nanos now, const Control& state, Admitted& admitted) {
    for (;;) {
        Admission::Guest guest;
        if (have_first_) {
            guest = std::move(first_);
            have_first_ = false;
        } else if (!admission_->next(now, guest)) {
            return false;
        }
        const bool port = guest.hello.kind == wire::Hello::kPort;
        if ((port && guest.hello.remote_port >= port_speeds_.size()) || !welcome(guest, state)) {
            continue;
        }
        if (guest.hello.kind == wire::Hello::kTcp) {
            admit(guest, admitted);
            return true;
        }
        if (guest.hello.path < inquiries_.size()) {
            inquiries_[guest.hello.path] = inquiry(guest);
        }
        beginnings_.push_back({std::move(guest), state.posted});
    }
}

bool TcpPathSource::take_beginning(Beginning& beginning) {
    if (beginnings_.empty()) {
        return false;
    }
    beginning = std::move(beginnings_.front());
    beginnings_.erase(beginnings_.begin());
    return true;
}

// A fresh connection has room for the answer: false if it is dead already.
bool TcpPathSource::welcome(const Admission::Guest& guest, const Control& state) const {
    const Device& device = admission_->acceptor().device();
    const Interface& link = device.links[guest.link];
    wire::Welcome answer;
    answer.version = guest.hello.version;
    const std::int64_t speed = guest.hello.kind == wire::Hello::kTcp
                                   ? link.speed_mbps
                                   : port_speeds_.at(guest.hello.remote_port);
    answer.speed_mbps = static_cast<std::uint32_t>(std::clamp<std::int64_t>(speed, 0, 0xffffffff));
    answer.completed = state.completed;
    answer.posted = state.posted;
    answer.endpoints = admission_->endpoints();
    std::array<std::byte, wire::kWelcomeBytes> bytes;
    wire::encode(answer, bytes);
    SocketTuning tuning;
    tuning.dead_after = dead_after_;
    // All it sends are acknowledgements. Behind this host's own bulk data on the same link
    // they would be late by different times on different links, and the sender would think
    // the faster queue the faster link: 6 % of an iteration over 2 + 1 Gbit/s.
    tuning.urgent = true;
    tune(guest.fd.get(), tuning);
    if (!device.own_address(guest.from) && !device.network_shared(guest.link)) {
        bind_to_link(guest.fd.get(), link);
    }
    return send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
}

void TcpPathSource::admit(Admission::Guest& guest, Admitted& admitted) {
    const Interface& link = admission_->acceptor().device().links[guest.link];
    if (guest.hello.path < links_.size()) {
        links_[guest.hello.path] = &link.name;
        inquiries_[guest.hello.path] = inquiry(guest);
    }
    admitted.index = guest.hello.path;
    admitted.incarnation = guest.hello.incarnation;
    admitted.counters = &LinkStats::process().link(link.name.c_str(), "tcp");
    admitted.counters->speed_mbps.store(link.speed_mbps, std::memory_order_relaxed);
    TcpPath::Options options;
    options.checked = (guest.hello.flags & wire::kFlagChecked) != 0;
    options.lent = (guest.hello.flags & wire::kFlagLent) != 0;
    // Everywhere else each message is acknowledged by a frame of ours, and the kernel's
    // acknowledgement travels with it.
    options.look_first = guest.hello.paths == 1 && !options.checked;
    admitted.path =
        std::make_unique<TcpPath>(std::move(guest.fd), TcpPath::Role::Receiver,
                                  link.name + " <- peer's " + guest.hello.link, options);
}

Carrier TcpPathSource::carrier(std::size_t path) const {
    return links_[path] == nullptr ? Carrier{} : CarrierWatch::of(*links_[path]);
}

Word TcpPathSource::ask(std::size_t path, Nanos now) {
    return inquiries_[path] == nullptr ? Word::Unheard : inquiries_[path]->ask(now);
}

// NULL where the sender cannot be asked: behind a translated address somebody else would
// answer.
std::unique_ptr<Inquiry> TcpPathSource::inquiry(const Admission::Guest& guest) const {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    Address own;
    if (!(guest.hello.home.address == guest.from) ||
        getsockname(guest.fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
        !from_sockaddr(reinterpret_cast<sockaddr*>(&storage), own, nullptr)) {
        return nullptr;
    }
    wire::Hello hello;
    hello.version = guest.hello.version;
    hello.listener = guest.hello.listener;
    hello.secret = guest.hello.secret;
    hello.connection = guest.hello.connection;
    hello.paths = 1;
    hello.flags = wire::kFlagAlive;
    Route route;
    route.link = guest.link;
    route.candidates = {{own, {guest.hello.home.link, guest.hello.home.port, guest.from}}};
    return std::make_unique<Inquiry>(admission_->acceptor().shared_device(), std::move(route),
                                     hello);
}

}  // namespace deft::net
