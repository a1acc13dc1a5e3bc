// SPDX-License-Identifier: Apache-2.0
#include "plugin/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "deft/abi/net.h"
#include "plugin/tcp/carrier_watch.h"
#include "plugin/tcp/descriptors.h"
#include "plugin/tcp/inquiry.h"
#include "plugin/tcp/tcp_dialer.h"
#include "plugin/tcp/tcp_path.h"
#include "plugin/tcp/tcp_socket.h"
#include "topology/kernel_links.h"

namespace deft::net {
namespace {

constexpr Nanos kDeadAfter = 5 * kSecond;  // a silent path, when there are others
// The only one of a sender: a new connection gets through sooner after an outage than TCP itself,
// which repeats its packets at intervals as long as the outage.
constexpr Nanos kOnlyDeadAfter = 10 * kSecond;
constexpr Nanos kAskInterval = 50 * kMillisecond;
constexpr Nanos kAskLimit = 10 * kSecond;  // then what the handle says has to do
constexpr Nanos kAddressesFresh = 100 * kMillisecond;
constexpr Nanos kAbandoned = 120 * kSecond;  // an attempt nobody has polled for

// The connections of a process share its links. Other ranks of the host do too, and know nothing of
// each other's trials.
constinit ProbeToken probe_token;

Nanos sender_dead_after(std::size_t paths, Nanos link_timeout) {
    return std::min(paths == 1 ? kOnlyDeadAfter : kDeadAfter, link_timeout / 2);
}

// The receiver of a single path does not end it: the sender may have been told that small messages
// are done, and may not be there any more to send them again. A newer connection takes its place.
Nanos receiver_dead_after(std::size_t paths, Nanos link_timeout) {
    return paths == 1 ? link_timeout / 4 * 3 : std::min(kDeadAfter, link_timeout / 2);
}

// The door of a TcpAcceptor, seen by one Receiver.
class TcpPathSource final : public PathSource {
public:
    TcpPathSource(std::unique_ptr<Admission> admission, Admission::Guest first, Nanos link_timeout)
        : admission_(std::move(admission)),
          first_(std::move(first)),
          have_first_(true),
          dead_after_(receiver_dead_after(first_.hello.paths, link_timeout)) {}

    bool next(Nanos now, const Control& state, Admitted& admitted) override {
        for (;;) {
            Admission::Guest guest;
            if (have_first_) {
                guest = std::move(first_);
                have_first_ = false;
            } else if (!admission_->next(now, guest)) {
                return false;
            }
            const Device& device = admission_->acceptor().device();
            const Interface& link = device.links[guest.link];
            wire::Welcome welcome;
            welcome.speed_mbps = static_cast<std::uint32_t>(
                std::clamp<std::int64_t>(link.speed_mbps, 0, 0xffffffff));
            welcome.completed = state.completed;
            welcome.posted = state.posted;
            welcome.endpoints = admission_->endpoints();
            std::array<std::byte, wire::kWelcomeBytes> bytes;
            wire::encode(welcome, bytes);
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
            // A fresh connection has room for it, unless it is already dead.
            if (send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
                static_cast<ssize_t>(bytes.size())) {
                continue;
            }
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
            return true;
        }
    }

    Carrier carrier(std::size_t path) const override {
        return links_[path] == nullptr ? Carrier{} : CarrierWatch::of(*links_[path]);
    }

    Word ask(std::size_t path, Nanos now) override {
        return inquiries_[path] == nullptr ? Word::Unheard : inquiries_[path]->ask(now);
    }

private:
    // NULL where the sender cannot be asked: behind a translated address somebody else would
    // answer.
    std::unique_ptr<Inquiry> inquiry(const Admission::Guest& guest) const {
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        Address own;
        if (!(guest.hello.home.address == guest.from) ||
            getsockname(guest.fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
            !from_sockaddr(reinterpret_cast<sockaddr*>(&storage), own, nullptr)) {
            return nullptr;
        }
        wire::Hello hello;
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

    std::unique_ptr<Admission> admission_;
    Admission::Guest first_;
    bool have_first_;
    Nanos dead_after_;
    std::array<const std::string*, wire::kMaxPaths> links_{};  // interface of each path
    std::array<std::unique_ptr<Inquiry>, wire::kMaxPaths> inquiries_;
};

// Every address of this host, as the kernel says: one may have come since the process started.
// Asked once for the connections of a moment.
std::vector<Address> host_addresses(Nanos now) {
    static Mutex mutex;
    static Nanos asked DEFT_GUARDED_BY(mutex) = 0;
    // Never destroyed, as attempts().
    static auto* const known DEFT_PT_GUARDED_BY(mutex) = new std::vector<Address>;
    const MutexLock lock(mutex);
    std::vector<KernelAddress> found;
    if ((asked == 0 || now < asked || now - asked > kAddressesFresh) &&
        read_kernel_addresses(found)) {
        asked = now;
        known->clear();
        for (const KernelAddress& each : found) {
            known->push_back(each.address);
        }
    }
    return *known;
}

// The routes from this device to a peer, without those that cannot lead to it.
std::vector<Route> routes_to(const wire::EndpointList& peer, const Device& device, Nanos now) {
    wire::EndpointList endpoints = peer;
    std::vector<Interface> links = device.links;
    const bool local = drop_doubles(host_addresses(now), links, endpoints);
    std::vector<Route> routes = plan_routes(links, endpoints);
    for (Route& route : routes) {
        route.local = local;
    }
    return routes;
}

struct Attempt {
    wire::Secret secret;
    std::unique_ptr<Sender> sender;
    // Before that, when the handle had no room for all of the peer's endpoints: asking for them.
    struct Question {
        std::unique_ptr<TcpDialer> dialer;
        bool failed = false;
    };
    std::vector<Question> asking;
    Nanos ask_again = 0;
    wire::Handle handle;
    std::uint32_t questions = 0;
    const void* context = nullptr;
    Nanos began = 0;  // asking, or last reached the peer's host
    Nanos last_poll = 0;
};

Mutex attempts_mutex;
std::map<std::uint64_t, Attempt>& attempts() DEFT_REQUIRES(attempts_mutex) {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& map = *new std::map<std::uint64_t, Attempt>;
    return map;
}

int connect_paths(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                  Nanos now, Attempt& attempt);

wire::Hello hello_of(const wire::Handle& handle) {
    wire::Hello hello;
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.paths = 1;
    return hello;
}

// Asks over every route at once; the first answer counts.
int start_asking(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                 Nanos now, Attempt& attempt) {
    wire::Hello hello = hello_of(attempt.handle);
    hello.flags = wire::kFlagAsk;
    TcpDialer::Options dialer;
    dialer.dead_after = options.link_timeout;
    dialer.congestion = options.congestion;
    for (const Route& route : routes_to(attempt.handle.endpoints, *device, now)) {
        attempt.asking.push_back({std::make_unique<TcpDialer>(device, route, hello, dialer)});
        attempt.asking.back().dialer->start(++attempt.questions, now);
    }
    attempt.began = now;
    return attempt.asking.empty() ? connect_paths(device, options, now, attempt) : DEFT_NET_SUCCESS;
}

// Goes on asking; once there is an answer, or none for too long, begins with what is known.
int poll_asking(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                Nanos now, Attempt& attempt) {
    bool answered = false;
    const bool again = now >= attempt.ask_again;
    attempt.ask_again = again ? now + kAskInterval : attempt.ask_again;
    for (auto& [dialer, failed] : attempt.asking) {
        if (failed && again) {
            dialer->start(++attempt.questions, now);
            failed = false;
        }
        Connected connected;
        const Dialer::Result result = dialer->poll(now, connected);
        if (result == Dialer::Result::Connected) {
            attempt.handle.endpoints = dialer->endpoints();
            answered = true;
            break;
        }
        if (result == Dialer::Result::Fatal || result == Dialer::Result::Closed) {
            DEFT_WARN("%s: %s", dialer->describe(), dialer->failure());
            return DEFT_NET_REMOTE_ERROR;
        }
        if (result != Dialer::Result::Pending) {
            failed = true;
        }
        if (dialer->reached(now)) {
            attempt.began = now;  // it answers when its NCCL asks for connections
        }
    }
    const Nanos patience = std::min(kAskLimit, options.link_timeout);
    if (!answered && now - attempt.began < patience) {
        return DEFT_NET_SUCCESS;
    }
    attempt.asking.clear();
    return connect_paths(device, options, now, attempt);
}

int start_attempt(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                  const wire::Handle& handle, Nanos now, Attempt& attempt) {
    attempt.context = options.context;
    attempt.secret = handle.secret;
    attempt.handle = handle;
    return handle.total > handle.endpoints.count ? start_asking(device, options, now, attempt)
                                                 : connect_paths(device, options, now, attempt);
}

// How many paths a connection may have: its first, and others as far as there are descriptors.
std::size_t paths_allowed(std::size_t wanted, const Descriptors& descriptors) {
    const std::size_t allowed = std::min(wanted, descriptors.spare() + 1);
    if (allowed < wanted) {
        DEFT_WARN_ONCE(
            "file descriptors are short (%zu of %zu in use): connections have fewer paths than the "
            "%zu that the links are good for; raise the limit (ulimit -n)",
            descriptors.used, descriptors.limit, wanted);
    }
    return allowed;
}

// Those known to work, if there are any; of equal links each in its turn.
void choose_routes(std::vector<Route>& routes, const std::vector<Interface>& links,
                   std::size_t most) {
    static std::atomic<std::size_t> turn{0};
    const auto dead = std::stable_partition(routes.begin(), routes.end(), [&](const Route& route) {
        return !known_dead(route, links[route.link]);
    });
    if (dead != routes.begin() && routes.size() > most) {
        routes.erase(dead, routes.end());
    }
    thin_out(routes, links, most, turn.fetch_add(1, std::memory_order_relaxed));
}

// Each route so many times, all of them once before any of them twice.
void multiply(std::vector<Route>& routes, std::size_t streams, std::size_t most) {
    const std::size_t links = routes.size();
    while (routes.size() < std::min(links * streams, most)) {
        routes.push_back(routes[routes.size() - links]);
    }
    for (std::size_t i = 0; i < routes.size(); ++i) {
        routes[i].streams = (routes.size() - i % links + links - 1) / links;
    }
}

bool number_connection(wire::Hello& hello) {
    while (hello.connection == 0) {
        if (!random_bytes(&hello.connection, sizeof(hello.connection))) {
            return false;
        }
    }
    return true;
}

// How many paths there are, and which of them are known not to work. True if none is known to:
// then all are tried.
bool count_paths(const std::vector<Route>& routes, const std::vector<Interface>& links,
                 wire::Hello& hello) {
    hello.paths = static_cast<std::uint16_t>(routes.size());
    for (std::size_t i = 0; i < routes.size(); ++i) {
        hello.absent |=
            static_cast<std::uint16_t>((known_dead(routes[i], links[routes[i].link]) ? 1 : 0) << i);
    }
    const bool all_dead = hello.absent == (1U << routes.size()) - 1;
    if (all_dead) {
        hello.absent = 0;
    }
    return all_dead;
}

int connect_paths(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                  Nanos now, Attempt& attempt) {
    const wire::Handle& handle = attempt.handle;
    std::vector<Route> routes = routes_to(handle.endpoints, *device, now);
    if (routes.empty()) {
        DEFT_WARN(
            "none of this host's links can reach the peer at %s: they share no address family "
            "(see DEFT_INTERFACES on both hosts)",
            handle.endpoints.entries[0].address.text().c_str());
        return DEFT_NET_SYSTEM_ERROR;
    }
    const Descriptors descriptors = Descriptors::now();
    const std::size_t allowed =
        paths_allowed(std::min(routes.size() * options.streams, wire::kMaxPaths), descriptors);
    if (allowed < routes.size()) {
        choose_routes(routes, device->links, allowed);
    }
    multiply(routes, options.streams, allowed);
    // Its pipes are what a connection can do without, too.
    const std::shared_ptr<PagePipes> pages =
        descriptors.spare() == 0 ? nullptr : PagePipes::process(options.zerocopy);
    wire::Hello hello = hello_of(handle);
    hello.flags = options.checksum ? wire::kFlagChecked : std::uint8_t{0};
    hello.flags |= pages == nullptr ? std::uint8_t{0} : wire::kFlagLent;
    if (!number_connection(hello)) {
        DEFT_WARN("neither getrandom nor /dev/urandom gives random bytes");
        return DEFT_NET_SYSTEM_ERROR;
    }
    const bool all_dead = count_paths(routes, device->links, hello);
    std::string problem;
    const std::shared_ptr<TcpAcceptor> acceptor = Descriptors::now().spare() == 0
                                                      ? TcpAcceptor::existing(device)
                                                      : TcpAcceptor::process(device, problem);
    const std::shared_ptr<TcpHome> home =
        acceptor == nullptr ? nullptr
                            : std::make_shared<TcpHome>(acceptor, hello.connection, hello.secret);
    TcpDialer::Options dialer;
    dialer.dead_after = sender_dead_after(routes.size(), options.link_timeout);
    dialer.congestion = options.congestion;
    dialer.pages = pages;
    dialer.pass_over = !all_dead;
    dialer.home = home;
    std::vector<std::unique_ptr<Dialer>> dialers;
    for (const Route& route : routes) {
        hello.path = static_cast<std::uint16_t>(dialers.size());
        dialers.push_back(std::make_unique<TcpDialer>(device, route, hello, dialer));
    }
    SenderOptions sender;
    sender.link_timeout = options.link_timeout;
    sender.early_done = !options.checksum;
    sender.probe_token = &probe_token;
    sender.home = home;
    std::snprintf(sender.name, sizeof(sender.name), "connection %016llx to %s",
                  static_cast<unsigned long long>(hello.connection),
                  handle.endpoints.entries[0].address.text().c_str());
    std::snprintf(sender.peer, sizeof(sender.peer), "%s",
                  handle.endpoints.entries[0].address.text().c_str());
    attempt.sender = std::make_unique<Sender>(sender, std::move(dialers), now);
    return DEFT_NET_SUCCESS;
}

int read_handle(std::span<const std::byte, wire::kHandleBytes> encoded, wire::Handle& handle) {
    switch (wire::decode(encoded, handle)) {
        case wire::Decoded::Ok:
            return DEFT_NET_SUCCESS;
        case wire::Decoded::WrongVersion:
            DEFT_WARN(
                "the peer's deft speaks protocol version %u, this one %u: install the same "
                "release on all hosts",
                handle.version, wire::kVersion);
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
    listener->admission_ = acceptor->open();
    if (listener->admission_ == nullptr) {
        problem = "neither getrandom nor /dev/urandom gives random bytes";
        return nullptr;
    }
    wire::Handle handle;
    handle.listener = listener->admission_->listener();
    handle.secret = listener->admission_->secret();
    handle.endpoints = listener->admission_->endpoints();
    handle.total = static_cast<std::uint8_t>(handle.endpoints.count);
    wire::encode(handle, out);
    return listener;
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
        const std::uint32_t all = (std::uint32_t{1} << paths) - 1;
        options.absent = static_cast<std::size_t>(__builtin_popcount(guest.hello.absent & all));
        std::snprintf(options.name, sizeof(options.name), "connection %016llx from %s",
                      static_cast<unsigned long long>(guest.hello.connection),
                      guest.from.text().c_str());
        std::snprintf(options.peer, sizeof(options.peer), "%s", guest.from.text().c_str());
        receiver_ = std::make_unique<Receiver>(
            options, paths,
            std::make_unique<TcpPathSource>(std::move(admission_), std::move(guest),
                                            options_.link_timeout));
    }
    return receiver_->establish(now) ? std::move(receiver_) : nullptr;
}

int connect(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
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
        const int result = start_attempt(device, options, handle, now, fresh);
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
    Attempt& waiting = found->second;
    lock.unlock();  // only the caller with this handle polls it; map nodes do not move
    if (waiting.sender == nullptr) {
        const int result = poll_asking(device, options, now, waiting);
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
    std::erase_if(attempts(), [&](const auto& entry) {
        const Attempt& attempt = entry.second;
        return all || now - attempt.last_poll > kAbandoned ||
               (context != nullptr && attempt.context == context);
    });
}

}  // namespace deft::net
