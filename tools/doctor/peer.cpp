// SPDX-License-Identifier: Apache-2.0
// The side that asks: `deft doctor --peer`.
#include "tools/doctor/peer.h"

#include <fmt/format.h>
#include <netdb.h>
#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/doctor/peer_socket.h"
#include "tools/doctor/peer_text.h"
#include "tools/doctor/peer_way.h"
#include "tools/foreign.h"

namespace deft::tools::doctor {
namespace {

using namespace std::chrono_literals;

// "HOST:PORT", "[ADDRESS]:PORT", "HOST", "ADDRESS" of either family.
void split_place(const std::string& where, std::string& host, std::string& port) {
    port = std::to_string(kPeerPort);
    host = where;
    if (where.starts_with('[')) {
        const auto close = where.find(']');
        host = where.substr(1, close == where.npos ? where.npos : close - 1);
        if (close != where.npos && close + 1 < where.size() && where[close + 1] == ':') {
            port = where.substr(close + 2);
        }
    } else if (const auto colon = where.find(':');
               colon != where.npos && where.find(':', colon + 1) == where.npos) {
        host = where.substr(0, colon);
        port = where.substr(colon + 1);
    }
}

// What the other side says; empty, and why, if it says nothing.
std::string info_text(const std::string& where, std::string& problem, bool& known) {
    std::string host;
    std::string port;
    split_place(where, host, port);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); error != 0) {
        problem = ::gai_strerror(error);
        known = false;
        return {};
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
        const UniqueFd fd =
            connect_to(each->ai_addr, each->ai_addrlen, "", nullptr, 0, after(5s), problem);
        if (fd && send_all(fd.get(), &kAskInfo, 1, after(5s))) {
            std::string text = receive_text(fd.get(), kMostPeerText, after(5s));
            if (!text.empty()) {
                return text;
            }
            problem = "connected, and no answer came";
        }
    }
    return {};
}

// A link that shares a network with some of the other side's has to reach these; another has to
// reach one of them over routers.
void try_link(const Interface& local, const PeerInfo& info, PeerFacts& facts) {
    bool direct = false;
    for (const PeerInfo::Link& remote : info.links) {
        Address from;
        Address to;
        if (in_one_network(local, remote, from, to)) {
            direct = true;
            facts.ways.push_back(try_way({local, from, remote.name, to, info.port}));
            facts.ways.back().local_mtu = local.mtu;
            facts.ways.back().remote_mtu = remote.mtu;
        }
    }
    std::vector<PeerLink> routed;
    for (const PeerInfo::Link& remote : info.links) {
        for (const Address& from : local.addresses) {
            for (const Address& to : remote.addresses) {
                if (direct || from.family != to.family || from.link_local() || to.link_local()) {
                    continue;
                }
                routed.push_back(try_way({local, from, remote.name, to, info.port}));
                if (routed.back().small_passed) {
                    facts.ways.push_back(routed.back());
                    return;
                }
            }
        }
    }
    if (!direct && !routed.empty()) {
        facts.ways.push_back(routed.front());
    }
}

}  // namespace

bool ask_info(const std::string& where, PeerInfo& info, std::string& problem, bool& known) {
    const std::string text = info_text(where, problem, known);
    if (text.empty()) {
        return false;
    }
    const bool understood = parse_peer_info(text, info);
    problem = understood ? "" : "what answers there is no deft doctor --listen";
    return understood;
}

PeerFacts ask_peer(const std::string& where, const LinkFacts& links, const Config& config) {
    PeerFacts facts;
    facts.address = where;
    looking_at(where);
    const auto begin = std::chrono::system_clock::now();
    PeerInfo info;
    const bool answered = ask_info(where, info, facts.problem, facts.known);
    const auto end = std::chrono::system_clock::now();
    if (!answered) {
        return facts;
    }
    facts.host = info.host;
    facts.version = info.version;
    facts.settings = info.settings;
    facts.own_settings = settings_to_compare(config);
    facts.links = info.links.size();
    facts.own_links = links.chosen.links.size();
    const auto seconds = [](auto time) {
        return std::chrono::duration<double>(time.time_since_epoch()).count();
    };
    facts.round_trip_s = seconds(end) - seconds(begin);
    facts.clock_apart_s = info.time - (seconds(begin) + seconds(end)) / 2;
    for (const Interface& local : links.chosen.links) {
        try_link(local, info, facts);
    }
    return facts;
}

}  // namespace deft::tools::doctor
