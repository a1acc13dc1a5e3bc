// SPDX-License-Identifier: Apache-2.0
// Which interfaces a job may use: the rules behind DEFT_INTERFACES and NCCL_SOCKET_IFNAME.
#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "topology/base/config.h"
#include "topology/interfaces.h"

namespace deft {
namespace {

// "lo, eth0" is how people write lists.
std::string_view without_blanks(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    const std::size_t last = text.find_last_not_of(" \t");
    return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

std::vector<std::string_view> split(std::string_view list) {
    std::vector<std::string_view> items;
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        const std::string_view item = without_blanks(list.substr(0, comma));
        if (!item.empty()) {
            items.push_back(item);
        }
        list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    }
    return items;
}

bool matches(const Interface& link, std::string_view item, bool exact) {
    return exact ? link.name == item : link.name.starts_with(item);
}

std::string names(const std::vector<Interface>& all) {
    std::string text;
    for (const Interface& link : all) {
        text += (text.empty() ? "" : ", ") + link.name;
        if (!link.up) {
            text += " (down)";
        } else if (link.addresses.empty()) {
            text += " (no address)";
        }
    }
    return text.empty() ? "none" : text;
}

const char* unusable(const Interface& link) {
    if (!link.up) {
        return "down or without a carrier";
    }
    return link.addresses.empty() ? "has no address" : nullptr;
}

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

// Why this one is not taken by default, whatever else there is; empty if it is.
std::string unwanted(const Interface& link) {
    if (link.loopback) {
        return "loopback";
    }
    if (link.name.starts_with("docker") || link.name.starts_with("virbr")) {
        return "virtual bridge of a container or machine manager";
    }
    if (link.bridge) {
        return "bridge";
    }
    if (link.usb || link.name.starts_with("idrac")) {
        return "management: the network to the host's own service processor";
    }
    if (one_of(link.driver, {"tun", "vxlan", "geneve", "wireguard", "gretap", "ipip", "sit"})) {
        return "tunnel (" + link.driver + "): it goes over another interface";
    }
    return one_of(link.driver, {"dummy", "ifb"}) ? "virtual (" + link.driver + ")" : "";
}

// Why this one is not taken beside the others; empty if it is.
std::string outdone(const Interface& link, const std::vector<const Interface*>& others) {
    std::int64_t fastest = 0;
    bool routable = false;
    for (const Interface* other : others) {
        if (other->name == link.physical_function) {
            return "virtual function of " + other->name + ", which is used itself";
        }
        if (other->name == link.lower) {
            return "goes over " + other->name + ", which is used itself";
        }
        fastest = std::max(fastest, other->speed_mbps);
        routable = routable || !other->addresses[0].link_local();
    }
    if (link.speed_mbps > 0 && link.speed_mbps <= kManagementSpeed &&
        link.speed_mbps * kManagementPart <= fastest) {
        return "management: " + std::to_string(link.speed_mbps) + " Mbit/s beside " +
               std::to_string(fastest) + " Mbit/s";
    }
    if (routable && link.addresses[0].link_local()) {
        return "has only a link-local address";
    }
    return "";
}

// A literal address as a link of its own, on whatever interface carries it.
bool literal_link(const std::vector<Interface>& all, std::string_view item, Interface& link,
                  std::string& problem) {
    const std::size_t at = item.find('@');
    Address address;
    if (!parse_address(item.substr(0, at), address)) {
        return false;
    }
    link = Interface{};
    for (const Interface& host : all) {
        for (const Address& own : host.addresses) {
            // Every address of 127.0.0.0/8 is the loopback interface's own.
            if (own == address || (host.loopback && own.loopback() && address.loopback() &&
                                   own.family == address.family)) {
                link = host;
                address.prefix = own == address ? own.prefix : 32;
                address.scope = own == address ? own.scope : 0;
            }
        }
    }
    if (link.name.empty()) {
        problem = "no interface has the address " + std::string(item.substr(0, at));
        return true;
    }
    link.name = std::string(item.substr(0, at));
    link.addresses = {address};
    link.index = 0;
    if (at != std::string_view::npos) {
        link.pacing_bytes_per_second = parse_rate(item.substr(at + 1));
        link.speed_mbps = static_cast<std::int64_t>(link.pacing_bytes_per_second * 8 / 1000000);
        if (link.pacing_bytes_per_second == 0) {
            problem =
                "the rate of \"" + std::string(item) + "\" is not a number with kbit, mbit or gbit";
        }
    }
    return true;
}

void choose_default(const std::vector<Interface>& all, InterfaceSelection& selection) {
    std::vector<const Interface*> candidates;
    std::vector<std::string> reasons;
    for (const Interface& link : all) {
        const char* reason = unusable(link);
        reasons.push_back(reason != nullptr ? reason : unwanted(link));
        if (reasons.back().empty()) {
            candidates.push_back(&link);
        }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (reasons[i].empty()) {
            reasons[i] = outdone(all[i], candidates);
        }
        if (reasons[i].empty()) {
            selection.links.push_back(all[i]);
        } else {
            selection.skipped.push_back({all[i].name, reasons[i]});
        }
    }
    // Nothing proper: bridges and docker before loopback, as one host of several may still be
    // meant.
    for (const bool loopback : {false, true}) {
        for (const Interface& link : all) {
            if (selection.links.empty() && unusable(link) == nullptr && link.loopback == loopback) {
                selection.links.push_back(link);
                std::erase_if(selection.skipped,
                              [&](const auto& other) { return other.name == link.name; });
            }
        }
    }
    if (selection.links.empty()) {
        selection.problem =
            "no network interface is up with an address (found: " + names(all) + ")";
    }
}

}  // namespace

std::uint64_t parse_rate(std::string_view text) {
    std::uint64_t value = 0;
    std::size_t digits = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 12) {
        value = value * 10 + static_cast<std::uint64_t>(text[digits++] - '0');
    }
    const std::string_view unit = text.substr(digits);
    const std::uint64_t scale = unit == "gbit"   ? 1000000000
                                : unit == "mbit" ? 1000000
                                : unit == "kbit" ? 1000
                                                 : 0;
    if (digits == 0 || scale == 0 || value > (std::uint64_t{1} << 62) / scale) {
        return 0;
    }
    return value * scale / 8;
}

InterfaceSelection select_interfaces(const std::vector<Interface>& all, std::string_view list,
                                     std::string_view variable, bool strict) {
    InterfaceSelection selection;
    bool exclude = false;
    bool exact = false;
    std::string_view rest = without_blanks(list);
    for (; !rest.empty() && (rest[0] == '^' || rest[0] == '='); rest.remove_prefix(1)) {
        exclude = exclude || rest[0] == '^';
        exact = exact || rest[0] == '=';
    }
    const std::vector<std::string_view> items = split(rest);
    if (items.empty()) {
        choose_default(all, selection);
        return selection;
    }
    const auto refuse = [&](const std::string& what) {
        selection.links.clear();
        selection.problem = std::string(variable) + "=" + std::string(list) + ": " + what +
                            "; this host has: " + names(all) +
                            "; correct the list or unset the variable";
    };
    if (exclude) {
        std::vector<Interface> left;
        for (const Interface& link : all) {
            bool hit = false;
            for (const std::string_view item : items) {
                hit = hit || matches(link, item, exact);
            }
            if (hit) {
                selection.skipped.push_back({link.name, "excluded by " + std::string(variable)});
            } else {
                left.push_back(link);
            }
        }
        choose_default(left, selection);
        if (!selection.problem.empty()) {
            refuse("leaves no usable interface");
        }
        return selection;
    }
    // In the order of the list, so that the operator can rank links.
    for (const std::string_view item : items) {
        Interface literal;
        std::string problem;
        if (literal_link(all, item, literal, problem)) {
            if (!problem.empty()) {
                refuse(problem);
                return selection;
            }
            selection.links.push_back(literal);
            continue;
        }
        bool known = false;
        for (const Interface& link : all) {
            if (!matches(link, item, exact)) {
                continue;
            }
            known = true;
            bool listed = false;
            for (const Interface& other : selection.links) {
                listed = listed || other.name == link.name;
            }
            if (const char* reason = unusable(link)) {
                selection.skipped.push_back({link.name, reason});
            } else if (!listed) {
                selection.links.push_back(link);
            }
        }
        if (!known && strict) {
            refuse("no interface is named \"" + std::string(item) + (exact ? "\"" : "...\""));
            return selection;
        }
    }
    if (selection.links.empty()) {
        refuse("matches no usable interface");
        return selection;
    }
    for (const Interface& link : all) {
        bool used = false;
        for (const Interface& other : selection.links) {
            used = used || other.name == link.name;
        }
        for (const auto& other : selection.skipped) {
            used = used || other.name == link.name;
        }
        if (!used) {
            selection.skipped.push_back({link.name, "not named by " + std::string(variable)});
        }
    }
    return selection;
}

InterfaceSelection process_interfaces() {
    const std::string& own = Config::process().text(Key::Interfaces);
    if (!own.empty()) {
        return select_interfaces(list_interfaces(), own, "DEFT_INTERFACES", true);
    }
    const char* nccl = std::getenv("NCCL_SOCKET_IFNAME");
    return select_interfaces(list_interfaces(), nccl == nullptr ? "" : nccl, "NCCL_SOCKET_IFNAME",
                             false);
}

}  // namespace deft
