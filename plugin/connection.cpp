// SPDX-License-Identifier: Apache-2.0
#include "plugin/connection.h"

#include <cstdio>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "deft/abi/net.h"
#include "plugin/attempt.h"
#include "plugin/mixed_path_source.h"
#include "plugin/port_pairs.h"
#include "plugin/tcp/tcp_path_source.h"

namespace deft::net {
namespace {

// An attempt nobody has polled for so long, twice: the first time the process may have been
// stopped.
constexpr Nanos kAbandoned = 60 * kSecond;

Mutex attempts_mutex;
std::map<std::uint64_t, Attempt>& attempts() DEFT_REQUIRES(attempts_mutex) {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& map = *new std::map<std::uint64_t, Attempt>;
    return map;
}

int read_handle(std::span<const std::byte, wire::kHandleBytes> encoded, wire::Handle& handle) {
    switch (wire::decode(encoded, handle)) {
        case wire::Decoded::Ok:
            return DEFT_NET_SUCCESS;
        case wire::Decoded::WrongVersion:
            DEFT_WARN(
                "the peer's deft speaks protocol versions %u to %u, this one %u to %u: install the "
                "same release on all hosts",
                handle.version, handle.newest, wire::kOldestVersion, wire::kVersion);
            return DEFT_NET_INVALID_USAGE;
        case wire::Decoded::NotDeft:
            DEFT_WARN(
                "the peer's connection handle is not deft's: load the same network plugin on "
                "all hosts");
            return DEFT_NET_INVALID_USAGE;
        case wire::Decoded::Malformed:
        case wire::Decoded::Damaged:
            DEFT_WARN("the peer's connection handle is damaged");
            return DEFT_NET_INVALID_ARGUMENT;
    }
    return DEFT_NET_INTERNAL_ERROR;
}

}  // namespace

std::unique_ptr<Listener> Listener::open(const std::shared_ptr<const Device>& device,
                                         const ConnectionOptions& options,
                                         std::span<std::byte, wire::kHandleBytes> out,
                                         std::string& problem) {
    const std::shared_ptr<TcpAcceptor> acceptor = TcpAcceptor::process(device, problem);
    if (acceptor == nullptr) {
        return nullptr;
    }
    auto listener = std::make_unique<Listener>();
    listener->options_ = options;
    wire::Handle handle;
    handle.ports = to_wire(options.ports);
    listener->admission_ = acceptor->open(handle.ports);
    if (listener->admission_ == nullptr) {
        problem = "neither getrandom nor /dev/urandom gives random bytes";
        return nullptr;
    }
    handle.features = wire::kFeatureGrants;
    handle.features |= options.gpu == nullptr ? std::uint8_t{0} : wire::kFeatureGpu;
    handle.total_ports = static_cast<std::uint8_t>(handle.ports.count);
    handle.listener = listener->admission_->listener();
    handle.secret = listener->admission_->secret();
    handle.endpoints = listener->admission_->endpoints();
    handle.total = static_cast<std::uint8_t>(handle.endpoints.count);
    if (device->first_reserve() < device->links.size()) {
        handle.first_reserve = static_cast<std::uint8_t>(device->first_reserve());
    }
    wire::encode(handle, out);
    return listener;
}

// Of a connection whose sender makes paths of other kinds, if it may.
std::unique_ptr<PathSource> Listener::source(Admission::Guest guest) {
    const bool mixed = (guest.hello.flags & wire::kFlagMixed) != 0 && !options_.ports.empty();
    std::vector<std::int64_t> speeds;
    for (const auto& port : options_.ports) {
        if (mixed && speeds.size() < wire::kMaxPorts) {
            speeds.push_back(port->speed_mbps);
        }
    }
    auto reception = std::make_unique<TcpPathSource>(std::move(admission_), std::move(guest),
                                                     options_.link_timeout, std::move(speeds));
    if (!mixed) {
        return reception;
    }
    return std::make_unique<MixedPathSource>(std::move(reception), options_.ports,
                                             options_.gpu != nullptr);
}

std::unique_ptr<Receiver> Listener::accept(Nanos now) {
    if (receiver_ == nullptr) {
        Admission::Guest guest;
        if (admission_ == nullptr || !admission_->next(now, guest)) {
            return nullptr;
        }
        const std::size_t paths = guest.hello.paths;
        ReceiverOptions options;
        options.link_timeout = options_.link_timeout;
        options.checked = (guest.hello.flags & wire::kFlagChecked) != 0;
        options.lazy_acks = !options.checked;
        options.gpu = options_.gpu;
        options.gpu_messages = options_.gpu != nullptr || (guest.hello.flags & wire::kFlagGpu) != 0;
        const std::uint32_t all = (std::uint32_t{1} << paths) - 1;
        options.absent = static_cast<std::size_t>(__builtin_popcount(guest.hello.absent & all));
        name_connection(options.name, guest.hello.connection, "from", guest.from.text().c_str(),
                        options_.communicator);
        std::snprintf(options.peer, sizeof(options.peer), "%s", guest.from.text().c_str());
        receiver_ = std::make_unique<Receiver>(options, paths, source(std::move(guest)));
    }
    return receiver_->establish(now) ? std::move(receiver_) : nullptr;
}

int connect(const std::shared_ptr<const Device>& device,
            const std::function<ConnectionOptions()>& options,
            std::span<std::byte, wire::kHandleBytes> encoded, Nanos now,
            std::unique_ptr<Sender>& sender) {
    wire::Handle handle;
    if (const int result = read_handle(encoded, handle); result != DEFT_NET_SUCCESS) {
        return result;
    }
    RelockableMutexLock lock(attempts_mutex);
    auto found = attempts().find(handle.attempt);
    if (handle.attempt == 0 || found == attempts().end() ||
        !wire::equal_secrets(found->second.secret, handle.secret)) {
        lock.unlock();
        forget_attempts(now, false);
        Attempt fresh;
        const int result = start_attempt(device, options(), handle, now, fresh);
        if (result != DEFT_NET_SUCCESS) {
            return result;
        }
        static std::uint64_t next_attempt DEFT_GUARDED_BY(attempts_mutex) = 1;
        lock.lock();
        const std::uint64_t number = next_attempt++;
        found = attempts().emplace(number, std::move(fresh)).first;
        wire::set_attempt(encoded, number);
    }
    found->second.last_poll = now;
    found->second.missed = 0;
    Attempt& waiting = found->second;
    lock.unlock();  // only the caller with this handle polls it; map nodes do not move
    if (waiting.sender == nullptr) {
        const int result = poll_asking(device, now, waiting);
        if (result != DEFT_NET_SUCCESS) {
            lock.lock();
            attempts().erase(found);
            return result;
        }
        if (waiting.sender == nullptr) {
            return DEFT_NET_SUCCESS;
        }
    }
    Sender& attempt = *waiting.sender;
    switch (attempt.establish(now)) {
        case Sender::Ready::NotYet:
            return DEFT_NET_SUCCESS;
        case Sender::Ready::Failed: {
            const int code = attempt.failure().code;
            lock.lock();
            attempts().erase(found);
            return code;
        }
        case Sender::Ready::Yes:
            lock.lock();
            sender = std::move(found->second.sender);
            attempts().erase(found);
            return DEFT_NET_SUCCESS;
    }
    return DEFT_NET_INTERNAL_ERROR;
}

void forget_attempts(Nanos now, bool all, const void* context) {
    const MutexLock lock(attempts_mutex);
    for (auto& [number, attempt] : attempts()) {
        if (attempt.missed == 0 && now - attempt.last_poll > kAbandoned) {
            attempt.missed = now;
        }
    }
    std::erase_if(attempts(), [&](const auto& entry) {
        const Attempt& attempt = entry.second;
        return all || (attempt.missed != 0 && now - attempt.missed > kAbandoned) ||
               (context != nullptr && attempt.options.context == context);
    });
}

}  // namespace deft::net
