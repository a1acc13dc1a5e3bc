// SPDX-License-Identifier: Apache-2.0
#include "plugin/mixed_path_source.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace deft::net {
namespace {

constexpr Nanos kHandshakeLimit = 10 * kSecond;

}  // namespace

MixedPathSource::MixedPathSource(std::unique_ptr<TcpPathSource> reception, Ports ports,
                                 bool flushes)
    : reception_(std::move(reception)), ports_(std::move(ports)), flushes_(flushes) {}

void MixedPathSource::begin(TcpPathSource::Beginning& beginning, Nanos now) {
    const wire::Hello& hello = beginning.guest.hello;
    if (hello.path >= port_of_.size()) {
        return;
    }
    std::erase_if(handshakes_, [&](const Coming& other) { return other.path == hello.path; });
    Coming coming;
    coming.port = ports_[hello.remote_port];  // which the admission has checked
    coming.path = hello.path;
    coming.incarnation = hello.incarnation;
    coming.told_posted = beginning.posted;
    coming.began = now;
    coming.handshake =
        coming.port->begin(PathRole::Receiver, std::move(beginning.guest.fd), flushes_);
    handshakes_.push_back(std::move(coming));
}

bool MixedPathSource::next(Nanos now, const Control& state, Admitted& admitted) {
    if (reception_->next(now, state, admitted)) {
        port_of_[admitted.index] = nullptr;
        return true;
    }
    TcpPathSource::Beginning beginning;
    while (reception_->take_beginning(beginning)) {
        begin(beginning, now);
    }
    for (std::size_t i = 0; i < handshakes_.size();) {
        Coming& coming = handshakes_[i];
        std::unique_ptr<Path> path;
        const Handshake::Result result = coming.handshake->poll(path);
        if (result == Handshake::Result::Pending && now - coming.began < kHandshakeLimit) {
            ++i;
            continue;
        }
        const bool connected = result == Handshake::Result::Connected;
        if (connected) {
            port_of_[coming.path] = coming.port;
            admit(coming, std::move(path), admitted);
        } else {
            DEFT_DEBUG("path %u over %s did not come up: %s", coming.path,
                       coming.port->name.c_str(), coming.handshake->failure());
        }
        handshakes_.erase(handshakes_.begin() + static_cast<std::ptrdiff_t>(i));
        if (connected) {
            return true;
        }
    }
    return false;
}

void MixedPathSource::admit(Coming& coming, std::unique_ptr<Path> path, Admitted& admitted) {
    admitted.index = coming.path;
    admitted.incarnation = coming.incarnation;
    admitted.told_posted = coming.told_posted;
    admitted.counters = &LinkStats::process().link(coming.port->name.c_str(), coming.port->kind);
    admitted.counters->speed_mbps.store(coming.port->speed_mbps, std::memory_order_relaxed);
    admitted.path = std::move(path);
}

Carrier MixedPathSource::carrier(std::size_t path) const {
    return port_of_[path] == nullptr ? reception_->carrier(path) : port_of_[path]->carrier();
}

std::vector<std::shared_ptr<Domain>> MixedPathSource::domains() const {
    std::vector<std::shared_ptr<Domain>> all;
    for (const auto& port : ports_) {
        auto domain = port->registers_in();
        if (std::find(all.begin(), all.end(), domain) == all.end()) {
            all.push_back(std::move(domain));
        }
    }
    return all;
}

}  // namespace deft::net
