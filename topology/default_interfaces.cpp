// SPDX-License-Identifier: Apache-2.0
// Which interfaces a job uses where no list names any.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "topology/interface_rules.h"
#include "topology/link_relations.h"

namespace deft {
namespace {

// A management network is far slower than what the job is for.
constexpr std::int64_t kManagementPart = 20;
constexpr std::int64_t kManagementSpeed = 1000;

bool one_of(std::string_view text, std::initializer_list<std::string_view> list) {
    for (const std::string_view each : list) {
        if (text == each) {
            return true;
        }
    }
    return false;
}

// Docker's user-defined networks: "br-" and twelve digits of the network's id.
bool docker_network(std::string_view name) {
    return name.size() == 15 && name.starts_with("br-") &&
           name.find_first_not_of("0123456789abcdef", 3) == name.npos;
}

bool by_container_manager(const Interface& link) {
    constexpr std::array<std::string_view, 11> begin = {"docker", "virbr",   "cni",        "cbr0",
                                                        "lxcbr",  "lxdbr",   "incusbr",    "podman",
                                                        "weave",  "nerdctl", "kube-bridge"};
    return docker_network(link.name) ||
           std::any_of(begin.begin(), begin.end(),
                       [&](std::string_view each) { return link.name.starts_with(each); });
}

// How unwanted an interface is by default, the less so the earlier: when there is nothing better
// the first class in which something is up is taken whole.
enum class Unwanted { No, Bridge, Tunnel, Containers, Virtual, Management, Loopback };

struct Judgement {
    Unwanted unwanted = Unwanted::No;
    std::string reason;
};

// Somebody has put a network card into it.
bool hardware_below(const std::vector<Interface>& all, const Interface& bridge) {
    return std::any_of(all.begin(), all.end(), [&](const Interface& port) {
        return port.master == bridge.name && port.kind != "veth" && leads_out(all, port);
    });
}

bool tunnel(const Interface& link) {
    const auto is_one = [](std::string_view text) {
        return one_of(text, {"tun", "vxlan", "geneve", "wireguard", "gre", "gretap", "ip6gre",
                             "ip6gretap", "erspan", "ipip", "sit", "ip6tnl", "vti", "xfrm"});
    };
    return is_one(link.driver) || is_one(link.kind);
}

// Of what is only there by software.
Judgement judge_virtual(const Interface& link) {
    // Some plugins give it the container's gateway, as a network of one.
    const bool network =
        std::any_of(link.addresses.begin(), link.addresses.end(), [](const Address& address) {
            return !address.link_local() &&
                   static_cast<std::size_t>(address.prefix) < 8 * address.size();
        });
    if (container_end(link) && !network) {
        return {Unwanted::Virtual, "the host's end of a container's link"};
    }
    if (link.peer_here) {
        return {Unwanted::Virtual, "virtual: its other end is in this host"};
    }
    if (one_of(link.driver, {"dummy", "ifb"}) || one_of(link.kind, {"dummy", "ifb", "vrf"})) {
        return {Unwanted::Virtual,
                "virtual (" + (link.kind.empty() ? link.driver : link.kind) + ")"};
    }
    return {};
}

// Why this one is not taken by default, whatever else there is.
Judgement judge(const std::vector<Interface>& all, const Interface& link) {
    if (link.loopback) {
        return {Unwanted::Loopback, "loopback"};
    }
    if (by_container_manager(link) && !hardware_below(all, link)) {
        return {Unwanted::Containers, "virtual bridge of a container or machine manager"};
    }
    if (is_bridge(link)) {
        return leads_out(all, link)
                   ? Judgement{}
                   : Judgement{Unwanted::Bridge,
                               "bridge without a port that leads out of this host"};
    }
    if (link.usb || link.name.starts_with("idrac")) {
        return {Unwanted::Management,
                "management: the network to the host's own service processor"};
    }
    if (tunnel(link)) {
        return {Unwanted::Tunnel, "tunnel (" + (link.driver.empty() ? link.kind : link.driver) +
                                      "): it goes over another interface"};
    }
    return judge_virtual(link);
}

// True if `link` goes over `below`, directly or not.
bool goes_over(const std::vector<Interface>& all, const Interface& link, const Interface& below) {
    const Interface* at = &link;
    for (std::size_t depth = 0; depth < all.size() && at != nullptr && !at->lower.empty();
         ++depth) {
        if (at->lower == below.name) {
            return true;
        }
        at = find_interface(all, at->lower);
    }
    return false;
}

// Why this one is not taken beside the others; empty if it is.
std::string outdone(const std::vector<Interface>& all, const Interface& link,
                    const std::vector<const Interface*>& others) {
    std::int64_t fastest = 0;
    for (const Interface* other : others) {
        if (other->name == link.physical_function) {
            return "virtual function of " + other->name + ", which is used itself";
        }
        if (goes_over(all, link, *other)) {
            return "goes over " + other->name + ", which is used itself";
        }
        fastest = std::max(fastest, other->nominal_speed());
    }
    if (link.speed_mbps > 0 && link.speed_mbps <= kManagementSpeed &&
        link.speed_mbps * kManagementPart <= fastest) {
        return "management: " + std::to_string(link.speed_mbps) + " Mbit/s beside " +
               std::to_string(fastest) + " Mbit/s";
    }
    return "";
}

// Where routers know the host by an address of `lo` or of a dummy interface (BGP unnumbered), no
// link has an address that they know.
bool holds_address(const Interface& link) {
    return link.address_holder() && link.routable() && link.up;
}

constexpr const char* kLinkLocalOnly = "has only a link-local address";

// What is known of one interface of those to choose from.
struct Candidate {
    const Interface* link = nullptr;
    Judgement judgement;  // with the reason why it is not taken, as far as there is one
    bool taken = false;
    bool usable = true;
    bool proper = false;  // judged by itself alone, it is taken
};

// Takes the proper ones of `candidates` that `counts` lets count, or what holds the host's address.
void take_proper(const std::vector<Interface>& all, std::vector<Candidate>& candidates,
                 bool (*counts)(const Candidate&)) {
    const auto each = [&](auto&& what) {
        for (Candidate& candidate : candidates) {
            if (counts(candidate)) {
                what(candidate);
            }
        }
    };
    bool routable = false;
    each([&](const Candidate& one) {
        if (one.link->routable()) {
            routable = true;
        }
    });
    if (!routable) {
        for (Candidate& one : candidates) {
            if (holds_address(*one.link)) {
                one.taken = true;
                routable = true;
            }
        }
    }
    // One that is not used itself stands in nobody's way.
    std::vector<const Interface*> used;
    each([&](Candidate& one) {
        if (routable && !one.link->routable()) {
            one.judgement.reason = kLinkLocalOnly;
        } else {
            used.push_back(one.link);
        }
    });
    for (Candidate& one : candidates) {
        if (std::find(used.begin(), used.end(), one.link) != used.end()) {
            one.judgement.reason = outdone(all, *one.link, used);
            if (one.judgement.reason.empty()) {
                one.taken = true;
            }
        }
    }
}

bool any_up(const std::vector<Candidate>& candidates, bool (*counts)(const Candidate&)) {
    return std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
        return candidate.link->up && counts(candidate);
    });
}

}  // namespace

void choose_default(const std::vector<Interface>& all, const std::vector<Interface>& left,
                    InterfaceSelection& selection) {
    std::vector<Candidate> candidates;
    for (const Interface& link : left) {
        Candidate candidate{&link, judge(all, link), false};
        if (std::string reason = unusable(all, link); !reason.empty()) {
            candidate.judgement.reason = std::move(reason);
            candidate.usable = false;
        }
        candidate.proper = candidate.judgement.reason.empty();
        candidates.push_back(std::move(candidate));
    }
    take_proper(all, candidates, [](const Candidate& one) { return one.proper; });
    // What has no carrier now does not stand in the way of all that has. Only then, because what is
    // chosen should be the same in every process of the host.
    const auto proper_and_up = [](const Candidate& one) { return one.proper && one.link->up; };
    if (any_up(candidates, proper_and_up) &&
        !any_up(candidates, [](const Candidate& one) { return one.taken; })) {
        take_proper(all, candidates, proper_and_up);
    }
    // Nothing proper: bridges and docker before loopback, as one host of several may still be
    // meant.
    for (const Unwanted wanted : {Unwanted::Bridge, Unwanted::Tunnel, Unwanted::Containers,
                                  Unwanted::Virtual, Unwanted::Management, Unwanted::Loopback}) {
        if (std::any_of(candidates.begin(), candidates.end(),
                        [](const Candidate& one) { return one.taken; })) {
            break;
        }
        for (Candidate& one : candidates) {
            one.taken = one.usable && one.link->up && one.judgement.unwanted == wanted;
        }
    }
    for (const Candidate& one : candidates) {
        if (one.taken) {
            selection.links.push_back(*one.link);
        } else {
            skip(selection, *one.link, one.judgement.reason);
        }
    }
    if (selection.links.empty()) {
        selection.problem = "no network interface has an address (found: " + names(left) + ")";
    }
}

}  // namespace deft
