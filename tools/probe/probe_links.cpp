// SPDX-License-Identifier: Apache-2.0
#include "tools/probe/probe_links.h"

#include <unistd.h>
#include <algorithm>
#include <future>
#include <span>

#include "base/build_version.h"
#include "tools/doctor/peer.h"
#include "tools/doctor/peer_way.h"
#include "topology/rdma.h"

namespace deft::tools::probe {
namespace {

using doctor::PeerInfo;
using doctor::PeerLink;
using doctor::Way;

constexpr std::size_t kAtOnce = 16;  // the listener serves 64

// Addresses by which routers may join two links.
bool routed(const Interface& local, const PeerInfo::Link& remote, Address& from, Address& to) {
    const auto usable = [](const Address& each) { return !each.link_local() && !each.loopback(); };
    for (const Address& a : local.addresses) {
        for (const Address& b : remote.addresses) {
            if (a.family == b.family && usable(a) && usable(b)) {
                from = a;
                to = b;
                return true;
            }
        }
    }
    return false;
}

std::string obstacle(const PeerLink& tried) {
    return !tried.connect_error.empty() ? tried.connect_error
           : !tried.small_passed        ? "connected, and no byte came back"
           : !tried.full_passed         ? "64 bytes pass, 64 KiB do not: see the MTU on the way"
                                        : "";
}

void measure(const Way& way, std::chrono::milliseconds time, LinkPair& pair) {
    std::vector<double> trips;
    if (const UniqueFd fd = doctor::open_way(way, pair.problem);
        fd && doctor::measure_round_trips(fd.get(), trips)) {
        pair.least_round_trip_s = trips.front();
        pair.median_round_trip_s = trips[trips.size() / 2];
    }
    doctor::Flow flow;
    if (const UniqueFd fd = doctor::open_way(way, pair.problem);
        fd && doctor::measure_sending(fd.get(), time, flow)) {
        pair.there = flow;
    }
    if (const UniqueFd fd = doctor::open_way(way, pair.problem);
        fd && doctor::measure_receiving(fd.get(), time, flow)) {
        pair.back = flow;
    }
    if (pair.problem.empty() && !(pair.median_round_trip_s && pair.there && pair.back)) {
        pair.problem = "it broke off while it was measured; do both hosts have this release?";
    }
}

struct Candidate {
    Way way;
    LinkPair pair;
};

std::vector<Candidate> candidates(const std::vector<Interface>& links, const PeerInfo& info) {
    std::vector<Candidate> all;
    for (const Interface& local : links) {
        for (const PeerInfo::Link& remote : info.links) {
            Candidate one{{local, {}, remote.name, {}, info.port}, {}};
            one.pair.from = local.name;
            one.pair.to = remote.name;
            one.pair.one_network = doctor::in_one_network(local, remote, one.way.from, one.way.to);
            if (one.pair.one_network || routed(local, remote, one.way.from, one.way.to)) {
                one.pair.from_address = one.way.from.text();
                one.pair.to_address = one.way.to.text();
            } else {
                one.pair.problem = "no addresses of one family";
            }
            all.push_back(std::move(one));
        }
    }
    return all;
}

// Some at once, as silence takes seconds to tell.
void try_ways(std::vector<Candidate>& all) {
    for (std::size_t first = 0; first < all.size(); first += kAtOnce) {
        const std::span some(all.data() + first, std::min(kAtOnce, all.size() - first));
        std::vector<std::future<PeerLink>> tried;
        for (const Candidate& each : some) {
            tried.push_back(std::async(std::launch::async, [&each] {
                return each.pair.problem.empty() ? doctor::try_way(each.way) : PeerLink();
            }));
        }
        for (std::size_t i = 0; i < some.size(); ++i) {
            const PeerLink result = tried[i].get();
            if (some[i].pair.problem.empty()) {
                some[i].pair.problem = obstacle(result);
            }
        }
    }
}

std::string own_name() {
    char name[256] = "";
    (void)::gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace

HostPair probe_host(const std::vector<std::string>& places, std::chrono::milliseconds time) {
    HostPair result;
    result.from = own_name();
    result.from_version = build_version();
    const std::vector<Interface> links = process_links().links;
    for (const Interface& link : links) {
        result.from_links.push_back({link.name, link.mtu, link.nominal_speed()});
    }
    PeerInfo info;
    bool answered = false;
    for (std::size_t i = 0; i < places.size() && !answered; ++i) {
        bool known = true;
        std::string why;
        answered = doctor::ask_info(places[i], info, why, known);
        if (!answered) {
            result.problem += (result.problem.empty() ? "" : "; ") + places[i] + ": " + why;
        }
    }
    if (!answered) {
        result.to = places.empty() ? "" : places.front();
        return result;
    }
    result.problem = links.empty() ? "this host has no link that deft would use" : "";
    result.to = info.host;
    result.to_version = info.version;
    for (const PeerInfo::Link& link : info.links) {
        result.to_links.push_back({link.name, link.mtu, link.speed_mbps});
    }
    std::vector<Candidate> all = candidates(links, info);
    try_ways(all);
    for (Candidate& each : all) {
        if (each.pair.problem.empty()) {
            measure(each.way, time, each.pair);
        }
        result.links.push_back(std::move(each.pair));
    }
    return result;
}

}  // namespace deft::tools::probe
