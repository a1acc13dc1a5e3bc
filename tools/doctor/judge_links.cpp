// SPDX-License-Identifier: Apache-2.0
// The host's links: which are used, and what is wrong with them.
#include <fmt/format.h>
#include <algorithm>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

const Interface* find_link(const std::vector<Interface>& links, const std::string& name) {
    const auto found = std::find_if(links.begin(), links.end(),
                                    [&](const Interface& link) { return link.name == name; });
    return found == links.end() ? nullptr : &*found;
}

// What is no link of its own: paced addresses of one interface.
bool is_literal(const Interface& link) {
    return link.index == 0;
}

void judge_number(const LinkFacts& facts, Diagnoses& found) {
    const auto& links = facts.chosen.links;
    if (links.empty()) {
        found.push_back({Finding::LinksNone,
                         facts.chosen.problem.empty() ? "no network interface can be used"
                                                      : facts.chosen.problem,
                         "deft topo says why each is left out", ""});
        return;
    }
    const bool loopback = std::all_of(links.begin(), links.end(), [](const Interface& link) {
        return link.loopback && !is_literal(link);
    });
    if (loopback) {
        found.push_back({Finding::LinksLoopback,
                         facts.list.empty() ? "no interface but loopback has an address"
                                            : facts.list + " names loopback alone",
                         "deft topo", ""});
    } else if (links.size() == 1) {
        found.push_back({Finding::LinksOne, fmt::format("{} is the only link", links[0].name),
                         "deft topo", ""});
    }
}

// Packets to the host's own addresses go over it, whatever the link.
void judge_loopback(const LinkFacts& facts, Diagnoses& found) {
    for (const Interface& link : facts.all) {
        if (link.loopback && !link.up) {
            found.push_back({Finding::LoopbackDown, fmt::format("{} is down", link.name),
                             "the kernel's flags of the interface", ""});
        }
    }
}

void judge_list(const LinkFacts& facts, Diagnoses& found) {
    if (facts.list.empty()) {
        return;
    }
    for (const Interface& link : facts.without_list.links) {
        if (!link.loopback && find_link(facts.chosen.links, link.name) == nullptr) {
            found.push_back({Finding::LinkExcluded,
                             fmt::format("{} leaves out {}, which leads out of the host",
                                         facts.list, link.name),
                             link.up ? "it has an address and a carrier" : "it has an address",
                             ""});
        }
    }
    for (const Interface& link : facts.chosen.links) {
        if (!is_literal(link) && !link.loopback &&
            find_link(facts.without_list.links, link.name) == nullptr &&
            !facts.without_list.links.empty()) {
            const auto& skipped = facts.without_list.skipped;
            const auto why = std::find_if(skipped.begin(), skipped.end(),
                                          [&](const auto& each) { return each.name == link.name; });
            found.push_back(
                {Finding::LinkInternal,
                 fmt::format("{} takes {}: {}", facts.list, link.name,
                             why == skipped.end() ? "it would not be used otherwise" : why->reason),
                 "what would be used without the list", ""});
        }
    }
}

void judge_link(const Interface& link, const LinkFacts& facts, Diagnoses& found) {
    if (is_literal(link) || link.loopback) {
        return;
    }
    if (!link.up) {
        found.push_back({Finding::LinkDown, fmt::format("{} has no carrier", link.name),
                         "the kernel's flags of the interface", ""});
    } else if (link.nominal_mbps > 0 && link.speed_mbps > 0 &&
               link.speed_mbps < link.nominal_mbps) {
        found.push_back({Finding::LinkSlow,
                         fmt::format("{} runs at {} Mbit/s and is made for {}", link.name,
                                     link.speed_mbps, link.nominal_mbps),
                         "its driver (ethtool)", ""});
    } else if (link.nominal_speed() == 0) {
        found.push_back({Finding::LinkSpeedUnknown,
                         fmt::format("no driver says how fast {} is", link.name), "ethtool", ""});
    }
    if (const auto rule = facts.shaped.find(link.name); rule != facts.shaped.end()) {
        found.push_back({Finding::LinkShaped,
                         fmt::format("{} has the rule {}", link.name, rule->second),
                         "tc qdisc show", ""});
    }
    if (const auto way = facts.astray.find(link.name); way != facts.astray.end()) {
        found.push_back({Finding::LinkRoute, fmt::format("{}: {}", link.name, way->second),
                         "the kernel's answer for a neighbour's address", ""});
    }
    const Interface* const lower = find_link(facts.all, link.lower);
    constexpr int kLeastMtu = 1280;  // IPv6 needs it (RFC 8200)
    if (link.mtu > 0 && link.mtu < kLeastMtu) {
        found.push_back({Finding::LinkMtu, fmt::format("{} has an MTU of {}", link.name, link.mtu),
                         "the kernel", ""});
    } else if (lower != nullptr && lower->mtu > 0 && link.mtu > lower->mtu) {
        found.push_back({Finding::LinkMtu,
                         fmt::format("{} has an MTU of {}, and {} below it one of {}", link.name,
                                     link.mtu, lower->name, lower->mtu),
                         "the kernel", ""});
    }
}

bool share_network(const Interface& left, const Interface& right) {
    for (const Address& a : left.addresses) {
        for (const Address& b : right.addresses) {
            const int whole = a.family == AF_INET ? 32 : 128;
            if (!a.link_local() && a.prefix < whole && a.same_network(b)) {
                return true;
            }
        }
    }
    return false;
}

// The address that both have; empty: none.
std::string shared_address(const Interface& left, const Interface& right) {
    for (const Address& address : left.addresses) {
        const auto& others = right.addresses;
        if (!address.link_local() && !is_literal(left) &&
            std::find(others.begin(), others.end(), address) != others.end()) {
            return address.text();
        }
    }
    return {};
}

// net.ipv4.conf.*.rp_filter: 1 is strict (RFC 3704).
void judge_shared_networks(const LinkFacts& facts, Diagnoses& found) {
    const auto strict = [&](const std::string& name) {
        const auto value = facts.reverse_path.find(name);
        return value != facts.reverse_path.end() && value->second == 1;
    };
    const auto& links = facts.chosen.links;
    for (std::size_t i = 0; i < links.size(); ++i) {
        for (std::size_t j = i + 1; j < links.size(); ++j) {
            if (const std::string both = shared_address(links[i], links[j]); !both.empty()) {
                found.push_back(
                    {Finding::LinkSameNetwork,
                     fmt::format("{} and {} both have {}", links[i].name, links[j].name, both),
                     "their addresses", "give each link an address of its own"});
            } else if (share_network(links[i], links[j]) &&
                       (strict(links[i].name) || strict(links[j].name))) {
                found.push_back({Finding::LinkSameNetwork,
                                 fmt::format("{} and {} share a network, and rp_filter=1",
                                             links[i].name, links[j].name),
                                 "their addresses, net.ipv4.conf", ""});
            }
        }
    }
}

// Hardware, or a container's end of a cable, that would be a link if it had an address.
void judge_without_address(const LinkFacts& facts, Diagnoses& found) {
    for (const Interface& link : facts.all) {
        const bool real = link.kind.empty() || link.kind == "veth" || link.kind == "bond";
        if (real && link.up && link.addresses.empty() && link.master.empty() && !link.loopback &&
            !link.hardware.empty() && !link.peer_here && !facts.rdma.shares_wire(link)) {
            found.push_back({Finding::LinkNoAddress,
                             fmt::format("{} has a carrier and no address", link.name),
                             "the kernel's addresses", ""});
        }
    }
}

// More than a connection may have (docs/limits.md).
void judge_streams(const Facts& facts, Diagnoses& found) {
    constexpr std::int64_t kMostPaths = 16;
    const std::int64_t streams = facts.settings ? facts.settings->config.integer(Key::Streams) : 1;
    const auto links = static_cast<std::int64_t>(facts.links->chosen.links.size());
    if (streams > 1 && streams * links > kMostPaths) {
        found.push_back({Finding::SettingIdle,
                         fmt::format("DEFT_STREAMS={} over {} links is more than the {} paths of a "
                                     "connection",
                                     streams, links, kMostPaths),
                         "deft topo", fmt::format("DEFT_STREAMS={}", kMostPaths / links)});
    }
}

}  // namespace

void judge_links(const Facts& facts, Diagnoses& found) {
    if (!facts.links) {
        return;
    }
    const LinkFacts& links = *facts.links;
    judge_number(links, found);
    judge_loopback(links, found);
    judge_list(links, found);
    for (const Interface& link : links.chosen.links) {
        judge_link(link, links, found);
    }
    judge_shared_networks(links, found);
    judge_streams(facts, found);
    judge_without_address(links, found);
    for (const InterfaceSelection::Skipped& skipped : links.chosen.skipped) {
        if (skipped.name != "lo") {
            found.push_back({Finding::LinkSkipped,
                             fmt::format("{} is not used: {}", skipped.name, skipped.reason),
                             "deft topo", ""});
        }
    }
}

}  // namespace deft::tools::doctor
