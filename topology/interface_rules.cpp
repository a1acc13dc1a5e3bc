// SPDX-License-Identifier: Apache-2.0
// Lists of interfaces: DEFT_INTERFACES and NCCL_SOCKET_IFNAME.
#include "topology/interface_rules.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/config.h"
#include "topology/interfaces.h"
#include "topology/link_relations.h"

namespace deft {

std::string names(const std::vector<Interface>& all) {
    std::string text;
    for (const Interface& link : all) {
        text += (text.empty() ? "" : ", ") + link.name;
        if (is_port(all, link)) {
            text += " (port of " + link.master + ")";
        } else if (link.addresses.empty()) {
            text += " (no address)";
        } else if (!link.up) {
            text += " (down)";
        }
    }
    return text.empty() ? "none" : text;
}

std::string unusable(const std::vector<Interface>& all, const Interface& link) {
    if (is_port(all, link)) {
        return "port of " + link.master + ", which has the addresses";
    }
    if (link.addresses.empty()) {
        return link.up ? "has no address" : "down or without a carrier, and has no address";
    }
    return "";
}

void skip(InterfaceSelection& selection, const Interface& link, const std::string& reason) {
    selection.skipped.push_back({link.name, reason});
}

namespace {

// "lo, eth0" is how people write lists.
std::string_view without_blanks(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    const std::size_t last = text.find_last_not_of(" \t");
    return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

// A list as NCCL writes it (parseStringList() and ncclFindInterfaces()): '^' first excludes, then
// '=' makes names exact, names are prefixes otherwise.
struct List {
    bool exclude = false;
    bool exact = false;
    std::vector<std::string_view> items;
};

List parse_list(std::string_view text, bool strict) {
    List list;
    const auto trimmed = [&](std::string_view part) {
        return strict ? without_blanks(part) : part;
    };
    text = trimmed(text);
    const auto leads = [&](char mark) {
        const bool found = text.starts_with(mark);
        text.remove_prefix(found ? 1 : 0);
        return found;
    };
    list.exclude = leads('^');
    list.exact = leads('=');
    while (!text.empty()) {
        const std::size_t comma = text.find(',');
        std::string_view item = trimmed(text.substr(0, comma));
        // NCCL cuts at the first colon ("bond0:0"): what follows is for its IB devices.
        item = strict ? item : item.substr(0, item.find(':'));
        if (!item.empty()) {
            list.items.push_back(item);
        }
        text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    }
    return list;
}

bool matches(const Interface& link, std::string_view name, bool exact) {
    return exact ? link.name == name : link.name.starts_with(name);
}

// "@RATE" behind a name or an address.
void set_speed(Interface& link, std::string_view item, std::string& problem) {
    const std::uint64_t rate = parse_rate(item.substr(item.rfind('@') + 1));
    link.speed_mbps = link.nominal_mbps = static_cast<std::int64_t>(rate * 8 / 1000000);
    if (rate == 0) {
        problem = "the rate of \"" + std::string(item) +
                  "\" is not a number with kbit, mbit or gbit (10gbit)";
    }
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
    link.wire.clear();
    if (at != std::string_view::npos) {
        link.pacing_bytes_per_second = parse_rate(item.substr(at + 1));
        set_speed(link, item, problem);
    }
    return true;
}

// One item of a list: a literal address, or every interface of that name or with that prefix.
void add_named(const std::vector<Interface>& all, std::string_view item, bool exact, bool strict,
               InterfaceSelection& selection, std::string& problem) {
    Interface literal;
    if (literal_link(all, item, literal, problem)) {
        if (problem.empty()) {
            selection.links.push_back(literal);
        }
        return;
    }
    const auto matching = [&](std::string_view name) {
        std::vector<Interface> found;
        std::copy_if(all.begin(), all.end(), std::back_inserter(found),
                     [&](const Interface& link) { return matches(link, name, exact); });
        return found;
    };
    std::vector<Interface> found = matching(item);
    if (const std::size_t at = item.rfind('@'); found.empty() && strict && at != item.npos) {
        found = matching(item.substr(0, at));
        for (Interface& link : found) {
            set_speed(link, item, problem);
        }
        item = problem.empty() ? item.substr(0, at) : item;
    }
    if (found.empty() && strict) {
        problem = "no interface is named \"" + std::string(item) + "\"" +
                  (exact ? "" : ", nor does the name of one begin so");
    }
    for (const Interface& link : found) {
        if (std::string reason = unusable(all, link); !reason.empty()) {
            skip(selection, link, reason);
        } else if (find_interface(selection.links, link.name) == nullptr) {
            selection.links.push_back(link);
        }
    }
}

// Those that the list does not exclude; the others are skipped.
std::vector<Interface> without_named(const std::vector<Interface>& all, const List& named,
                                     std::string_view variable, InterfaceSelection& selection) {
    std::vector<Interface> left;
    for (const Interface& link : all) {
        const bool hit =
            std::any_of(named.items.begin(), named.items.end(),
                        [&](std::string_view item) { return matches(link, item, named.exact); });
        if (hit) {
            skip(selection, link, "excluded by " + std::string(variable));
        } else {
            left.push_back(link);
        }
    }
    return left;
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
    if (all.empty()) {
        // Every network namespace has its loopback.
        selection.problem =
            "the kernel lists no network interface, not even loopback: most likely a sandbox "
            "forbids netlink sockets; allow AF_NETLINK (systemd: RestrictAddressFamilies)";
        return selection;
    }
    const List named = parse_list(list, strict);
    if (named.items.empty()) {
        choose_default(all, all, selection);
        return selection;
    }
    const auto refuse = [&](const std::string& what) {
        selection.links.clear();
        selection.problem = std::string(variable) + "=" + std::string(list) + ": " + what +
                            "; this host has: " + names(all) +
                            "; correct the list or unset the variable";
    };
    if (named.exclude) {
        choose_default(all, without_named(all, named, variable, selection), selection);
        if (!selection.problem.empty()) {
            refuse("leaves no usable interface");
        }
        return selection;
    }
    // In the order of the list, so that the operator can rank links.
    for (const std::string_view item : named.items) {
        std::string problem;
        add_named(all, item, named.exact, strict, selection, problem);
        if (!problem.empty()) {
            refuse(problem);
            return selection;
        }
    }
    if (selection.links.empty()) {
        refuse(!strict && list.find_first_of(" \t") != list.npos
                   ? "matches no usable interface (NCCL takes a blank for a part of a name)"
                   : "matches no usable interface");
        return selection;
    }
    for (const Interface& link : all) {
        const bool known = find_interface(selection.links, link.name) != nullptr ||
                           std::any_of(selection.skipped.begin(), selection.skipped.end(),
                                       [&](const auto& other) { return other.name == link.name; });
        if (!known) {
            skip(selection, link, "not named by " + std::string(variable));
        }
    }
    return selection;
}

std::string interfaces_problem(const Config& config) {
    const Setting& setting = config.setting(Key::Interfaces);
    if (setting.text.empty()) {
        return {};
    }
    const std::string name = variable(Key::Interfaces).name;
    const bool file = setting.source != ValueSource::Environment;
    return select_interfaces(list_interfaces(), setting.text,
                             file ? name + " (" + setting.origin + ")" : name, true)
        .problem;
}

InterfaceSelection process_interfaces() {
    // As NCCL: another value of NCCL_SOCKET_FAMILY, and an NCCL_SOCKET_IFNAME of one letter, do not
    // count.
    const char* family_name = std::getenv("NCCL_SOCKET_FAMILY");
    const std::string_view text = family_name == nullptr ? "" : family_name;
    const int family = text == "AF_INET" ? AF_INET : text == "AF_INET6" ? AF_INET6 : AF_UNSPEC;
    const std::string& own = Config::process().text(Key::Interfaces);
    const char* nccl = std::getenv("NCCL_SOCKET_IFNAME");
    const std::string_view list = nccl == nullptr || std::strlen(nccl) < 2 ? "" : nccl;
    const auto select = [&](int of_family) {
        const std::vector<Interface> all = list_interfaces(of_family);
        return own.empty() ? select_interfaces(all, list, "NCCL_SOCKET_IFNAME", false)
                           : select_interfaces(all, own, "DEFT_INTERFACES", true);
    };
    InterfaceSelection selection = select(family);
    if (selection.problem.empty() || family == AF_UNSPEC) {
        return selection;
    }
    if (!own.empty()) {
        // Addresses that the operator names count whatever their family is.
        return select(AF_UNSPEC);
    }
    selection.problem += " (only addresses of NCCL_SOCKET_FAMILY=" + std::string(text) + " count)";
    return selection;
}

}  // namespace deft
