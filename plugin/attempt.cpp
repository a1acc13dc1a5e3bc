// SPDX-License-Identifier: Apache-2.0
#include "plugin/attempt.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "deft/abi/net.h"
#include "plugin/port_dialer.h"
#include "plugin/port_pairs.h"
#include "plugin/tcp/descriptors.h"
#include "plugin/tcp/tcp_path_source.h"
#include "topology/kernel_links.h"
#include "topology/link_relations.h"

namespace deft::net {
namespace {

// The only one of a sender: a new connection gets through sooner after an outage than TCP itself,
// which repeats its packets at intervals as long as the outage.
constexpr Nanos kOnlyDeadAfter = 10 * kSecond;
constexpr Nanos kAskInterval = 50 * kMillisecond;
constexpr Nanos kAskLimit = 10 * kSecond;  // then what the handle says has to do
constexpr Nanos kAddressesFresh = 100 * kMillisecond;
constexpr std::size_t kReceptions = 4;  // ways over TCP that one path over RDMA tries by turns

// The connections of a process share its links. Other ranks of the host do too, and know nothing of
// each other's trials.
constinit ProbeToken probe_token;

Nanos sender_dead_after(std::size_t paths, Nanos link_timeout) {
    return std::min(paths == 1 ? kOnlyDeadAfter : kDeadAfter, link_timeout / 2);
}

// Every address of this host, as the kernel says: one may have come since the process started.
// Asked once for the connections of a moment.
std::vector<Address> host_addresses(Nanos now) {
    static Mutex mutex;
    static Nanos asked DEFT_GUARDED_BY(mutex) = 0;
    // Never destroyed: NCCL's threads may be inside while the process exits.
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
std::vector<Route> routes_to(const wire::Handle& peer, const Device& device, Nanos now) {
    wire::EndpointList endpoints = peer.endpoints;
    std::vector<Interface> links = device.links;
    const bool local = drop_doubles(host_addresses(now), links, endpoints);
    std::vector<Route> routes = plan_routes(links, endpoints, peer.first_reserve);
    for (Route& route : routes) {
        route.local = local;
    }
    return routes;
}

wire::Hello hello_of(const wire::Handle& handle) {
    wire::Hello hello;
    hello.version = wire::common_version(handle);
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.paths = 1;
    return hello;
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

// Those behind the others, which are left without them.
std::vector<Route> take_reserves(std::vector<Route>& routes) {
    const auto first = std::find_if(routes.begin(), routes.end(),
                                    [](const Route& route) { return route.reserve; });
    std::vector<Route> reserves(first, routes.end());
    routes.erase(first, routes.end());
    return reserves;
}

bool number_connection(wire::Hello& hello) {
    while (hello.connection == 0) {
        if (!random_bytes(&hello.connection, sizeof(hello.connection))) {
            return false;
        }
    }
    return true;
}

// Which of the paths over TCP are known not to work. True if none is known to: then all are tried.
bool note_dead(const std::vector<Route>& routes, const std::vector<Interface>& links,
               wire::Hello& hello) {
    for (std::size_t i = 0; i < routes.size(); ++i) {
        hello.absent |=
            static_cast<std::uint16_t>((known_dead(routes[i], links[routes[i].link]) ? 1 : 0) << i);
    }
    const bool all_dead = hello.absent == (1U << routes.size()) - 1;
    if (all_dead) {
        hello.absent = 0;
    }
    // A reserve may lead nowhere: where another path is to be had, it is not waited for.
    std::uint32_t reserves = 0;
    for (std::size_t i = 0; i < routes.size(); ++i) {
        reserves |= (routes[i].reserve ? std::uint32_t{1} : 0) << i;
    }
    const std::uint32_t tried = (std::uint32_t{1} << routes.size()) - 1;
    if (reserves != 0 && (tried & ~(hello.absent | reserves)) != 0) {
        hello.absent |= static_cast<std::uint16_t>(reserves);
    }
    return all_dead;
}

// The paths over ports that are on the link's wire, by bits; `first`: the number of the first
// pair's.
std::uint32_t paths_on_wire(const Interface& link, const PortPairs& pairs, const Ports& ports,
                            std::size_t first) {
    std::uint32_t paths = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const bool shares = shares_wire(link, ports[pairs[i].first]->interfaces);
        paths |= (shares ? std::uint32_t{1} : 0) << (first + i);
    }
    return paths;
}

// Ways to the peer's listener for a path over this port: first the one that shares its wire, and
// with it its fate.
std::vector<Route> receptions_for(const Port& port, std::vector<Route> routes, const Device& device,
                                  std::size_t turn) {
    std::rotate(routes.begin(), routes.begin() + static_cast<std::ptrdiff_t>(turn % routes.size()),
                routes.end());
    std::stable_partition(routes.begin(), routes.end(), [&](const Route& route) {
        return shares_wire(device.links[route.link], port.interfaces);
    });
    routes.resize(std::min(routes.size(), kReceptions));
    return routes;
}

// The ports of this host that are paired with ports of the peer's.
PortPairs pairs_to(const wire::Handle& handle, const ConnectionOptions& options) {
    if (!options.ports.empty() && (handle.features & wire::kFeatureGrants) == 0) {
        DEFT_INFO(
            "the deft of the peer at %s is too old for links other than TCP: this connection uses "
            "TCP",
            handle.endpoints.entries[0].address.text().c_str());
    }
    return pair_ports(options.ports, handle.ports, wire::kMaxPaths - 1);
}

void add_port_dialers(const std::shared_ptr<const Device>& device, const ConnectionOptions& options,
                      const PortPairs& pairs, const std::vector<Route>& routes,
                      const wire::Handle& handle, wire::Hello hello,
                      const TcpDialer::Options& reception,
                      std::vector<std::unique_ptr<Dialer>>& dialers) {
    hello.kind = wire::Hello::kPort;
    for (const auto& [own, peer] : pairs) {
        const std::shared_ptr<const Port>& port = options.ports[own];
        hello.path = static_cast<std::uint16_t>(dialers.size());
        hello.remote_port = static_cast<std::uint8_t>(peer);
        hello.speed_mbps =
            static_cast<std::uint32_t>(std::clamp<std::int64_t>(port->speed_mbps, 0, 0xffffffff));
        std::snprintf(hello.link, sizeof(hello.link), "%s", port->name.c_str());
        std::vector<std::unique_ptr<TcpDialer>> receptions;
        for (const Route& route : receptions_for(*port, routes, *device, dialers.size())) {
            receptions.push_back(std::make_unique<TcpDialer>(device, route, hello, reception));
        }
        dialers.push_back(
            std::make_unique<PortDialer>(port, handle.ports.entries[peer], std::move(receptions)));
    }
}

int connect_paths(const std::shared_ptr<const Device>& device, Nanos now, Attempt& attempt) {
    const ConnectionOptions& options = attempt.options;
    const wire::Handle& handle = attempt.handle;
    std::vector<Route> routes = routes_to(handle, *device, now);
    if (routes.empty()) {
        DEFT_WARN(
            "none of this host's links can reach the peer at %s: they share no address family "
            "(see DEFT_INTERFACES on both hosts)",
            handle.endpoints.entries[0].address.text().c_str());
        return DEFT_NET_SYSTEM_ERROR;
    }
    std::vector<Route> reserves = take_reserves(routes);
    auto pairs = pairs_to(handle, options);
    const Descriptors descriptors = Descriptors::now();
    std::size_t allowed = paths_allowed(
        std::min(routes.size() * options.streams + reserves.size() + pairs.size(), wire::kMaxPaths),
        descriptors);
    pairs.resize(std::min(pairs.size(), allowed - 1));
    allowed -= pairs.size();
    if (allowed < routes.size()) {
        choose_routes(routes, device->links, allowed);
    }
    const std::vector<Route> receptions = routes;
    multiply(routes, options.streams,
             std::max(receptions.size(), allowed - std::min(allowed, reserves.size())));
    reserves.resize(std::min(reserves.size(), allowed - std::min(allowed, routes.size())));
    const std::uint32_t others = (std::uint32_t{1} << routes.size()) - 1;
    std::move(reserves.begin(), reserves.end(), std::back_inserter(routes));
    const std::size_t paths = routes.size() + pairs.size();
    // Its pipes are what a connection can do without, too.
    const std::shared_ptr<PagePipes> pages =
        descriptors.spare() == 0 ? nullptr : PagePipes::process(options.zerocopy);
    wire::Hello hello = hello_of(handle);
    hello.flags = options.checksum ? wire::kFlagChecked : std::uint8_t{0};
    hello.flags |= pages == nullptr ? std::uint8_t{0} : wire::kFlagLent;
    hello.flags |= pairs.empty() ? std::uint8_t{0} : wire::kFlagMixed;
    hello.flags |= options.gpu == nullptr ? std::uint8_t{0} : wire::kFlagGpu;
    hello.paths = static_cast<std::uint16_t>(paths);
    if (!number_connection(hello)) {
        DEFT_WARN("neither getrandom nor /dev/urandom gives random bytes");
        return DEFT_NET_SYSTEM_ERROR;
    }
    const bool all_dead = note_dead(routes, device->links, hello);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const auto& [own, peer] = pairs[i];
        const bool dead = PortDialer::known_dead(*options.ports[own], handle.ports.entries[peer]);
        hello.absent |= static_cast<std::uint16_t>((dead ? 1 : 0) << (routes.size() + i));
    }
    std::string problem;
    const std::shared_ptr<TcpAcceptor> acceptor = Descriptors::now().spare() == 0
                                                      ? TcpAcceptor::existing(device)
                                                      : TcpAcceptor::process(device, problem);
    const std::shared_ptr<TcpHome> home =
        acceptor == nullptr ? nullptr
                            : std::make_shared<TcpHome>(acceptor, hello.connection, hello.secret);
    TcpDialer::Options dialer;
    dialer.dead_after = sender_dead_after(paths, options.link_timeout);
    dialer.congestion = options.congestion;
    dialer.pages = pages;
    dialer.pass_over = !all_dead;
    dialer.home = home;
    std::vector<std::unique_ptr<Dialer>> dialers;
    for (const Route& route : routes) {
        dialer.reserve = route.reserve;
        dialer.gives_way_to =
            paths_on_wire(device->links[route.link], pairs, options.ports, routes.size()) |
            (route.reserve ? others : 0);
        hello.path = static_cast<std::uint16_t>(dialers.size());
        dialers.push_back(std::make_unique<TcpDialer>(device, route, hello, dialer));
    }
    dialer.pass_over = false;
    dialer.gives_way_to = 0;
    dialer.reserve = false;
    add_port_dialers(device, options, pairs, receptions, handle, hello, dialer, dialers);
    SenderOptions sender;
    sender.link_timeout = options.link_timeout;
    sender.early_done = !options.checksum;
    sender.gpu = options.gpu;
    sender.gpu_messages = options.gpu != nullptr || (handle.features & wire::kFeatureGpu) != 0;
    sender.probe_token = &probe_token;
    sender.home = home;
    name_connection(sender.name, hello.connection, "to",
                    handle.endpoints.entries[0].address.text().c_str(), options.communicator);
    std::snprintf(sender.peer, sizeof(sender.peer), "%s",
                  handle.endpoints.entries[0].address.text().c_str());
    attempt.sender = std::make_unique<Sender>(sender, std::move(dialers), now);
    return DEFT_NET_SUCCESS;
}

// Asks over every route at once; the first answer counts.
int start_asking(const std::shared_ptr<const Device>& device, Nanos now, Attempt& attempt) {
    wire::Hello hello = hello_of(attempt.handle);
    hello.flags = wire::kFlagAsk;
    TcpDialer::Options dialer;
    dialer.dead_after = attempt.options.link_timeout;
    dialer.congestion = attempt.options.congestion;
    for (const Route& route : routes_to(attempt.handle, *device, now)) {
        attempt.asking.push_back({std::make_unique<TcpDialer>(device, route, hello, dialer)});
        attempt.asking.back().dialer->start(++attempt.questions, now);
    }
    attempt.began = now;
    return attempt.asking.empty() ? connect_paths(device, now, attempt) : DEFT_NET_SUCCESS;
}

}  // namespace

int poll_asking(const std::shared_ptr<const Device>& device, Nanos now, Attempt& attempt) {
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
            attempt.handle.ports = dialer->ports();
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
    const Nanos patience = std::min(kAskLimit, attempt.options.link_timeout);
    if (!answered && now - attempt.began < patience) {
        return DEFT_NET_SUCCESS;
    }
    attempt.asking.clear();
    return connect_paths(device, now, attempt);
}

int start_attempt(const std::shared_ptr<const Device>& device, ConnectionOptions options,
                  const wire::Handle& handle, Nanos now, Attempt& attempt) {
    attempt.options = std::move(options);
    attempt.secret = handle.secret;
    attempt.handle = handle;
    const bool all_known =
        handle.total <= handle.endpoints.count &&
        (handle.total_ports <= handle.ports.count || attempt.options.ports.empty());
    return all_known ? connect_paths(device, now, attempt) : start_asking(device, now, attempt);
}

}  // namespace deft::net
