// SPDX-License-Identifier: Apache-2.0
// Another host, as `deft doctor --listen` there has answered.
#include <fmt/format.h>
#include <cmath>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

void judge_way(const PeerLink& way, const std::string& host, Diagnoses& found) {
    const std::string name = fmt::format("{} to {} of {}", way.local, way.remote, host);
    if (!way.connect_error.empty()) {
        found.push_back({Finding::PeerLinkBlocked, fmt::format("{}: {}", name, way.connect_error),
                         "connect", ""});
    } else if (!way.small_passed) {
        found.push_back({Finding::PeerLinkBlocked, name + ": connected, and no byte came back",
                         "an echo of 64 bytes", ""});
    } else if (!way.full_passed) {
        found.push_back({Finding::PeerFullSize, name + ": 64 bytes passed, 64 KiB did not",
                         "an echo of 64 KiB", ""});
    } else if (way.local_mtu > 0 && way.remote_mtu > 0 && way.local_mtu != way.remote_mtu) {
        found.push_back({Finding::PeerMtu,
                         fmt::format("{}: the MTU is {} here, and {} there", name, way.local_mtu,
                                     way.remote_mtu),
                         "what deft doctor --listen says", ""});
    }
}

}  // namespace

void judge_peer(const Facts& facts, Diagnoses& found) {
    if (!facts.peer) {
        return;
    }
    const PeerFacts& peer = *facts.peer;
    if (!peer.problem.empty()) {
        found.push_back({Finding::PeerUnreachable,
                         fmt::format("{}: {}", peer.address, peer.problem),
                         peer.known ? "connect" : "getaddrinfo",
                         peer.known ? "" : "name a host that getent hosts knows, or an address"});
        return;
    }
    if (facts.preload && peer.version != facts.preload->command_version) {
        found.push_back({Finding::PeerVersion,
                         fmt::format("{} has deft {}, this host {}", peer.host, peer.version,
                                     facts.preload->command_version),
                         "what deft doctor --listen says", ""});
    }
    for (const auto& [name, value] : peer.own_settings) {
        const auto theirs = peer.settings.find(name);
        if (theirs != peer.settings.end() && theirs->second != value) {
            found.push_back({Finding::PeerSettings,
                             fmt::format("{} is '{}' on {}, and '{}' here", name, theirs->second,
                                         peer.host, value),
                             "what deft doctor --listen says", ""});
        }
    }
    for (const PeerLink& way : peer.ways) {
        judge_way(way, peer.host, found);
    }
    if (peer.links != peer.own_links) {
        found.push_back(
            {Finding::PeerLinks,
             fmt::format("{} has {} links, this host {}", peer.host, peer.links, peer.own_links),
             "what deft doctor --listen says", ""});
    }
    if (std::abs(peer.clock_apart_s) > 1 + peer.round_trip_s) {
        found.push_back(
            {Finding::PeerClock,
             fmt::format("the clock of {} is {:.1f} s {}", peer.host, std::abs(peer.clock_apart_s),
                         peer.clock_apart_s > 0 ? "ahead" : "behind"),
             "time of day on both hosts", ""});
    }
}

}  // namespace deft::tools::doctor
