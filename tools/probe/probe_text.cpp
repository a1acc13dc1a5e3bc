// SPDX-License-Identifier: Apache-2.0
// What was measured, for people.
#include <fmt/format.h>
#include <algorithm>

#include "tools/probe/probe_result.h"
#include "tools/text_output.h"
#include "tools/text_table.h"

namespace deft::tools::probe {
namespace {

constexpr double kMostSentAgain = 1e-3;  // from here on TCP is slowed down

bool passes(const LinkPair& pair) {
    return pair.problem.empty();
}

double loss_of(const LinkPair& pair) {
    return std::max(pair.there ? pair.there->sent_again : 0, pair.back ? pair.back->sent_again : 0);
}

std::string gbit(const std::optional<doctor::Flow>& flow) {
    if (!flow) {
        return "-";
    }
    const double rate = flow->bytes_per_s * 8e-9;
    return fmt::format("{:.{}f}", rate, rate < 10 ? 2 : 1);
}

std::string cell(const LinkPair* pair) {
    if (pair == nullptr) {
        return "";
    }
    if (pair->from_address.empty()) {
        return "-";
    }
    return passes(*pair)       ? gbit(pair->there) + " / " + gbit(pair->back)
           : pair->one_network ? "BLOCKED"
                               : "no way";
}

const LinkPair* find(const HostPair& hosts, const std::string& from, const std::string& to) {
    const auto found =
        std::find_if(hosts.links.begin(), hosts.links.end(),
                     [&](const LinkPair& pair) { return pair.from == from && pair.to == to; });
    return found == hosts.links.end() ? nullptr : &*found;
}

// Links of one side that have no way to any of the other.
std::vector<std::string> lonely(const HostPair& hosts, bool first) {
    std::vector<std::string> names;
    for (const ProbedLink& link : first ? hosts.from_links : hosts.to_links) {
        const bool reached =
            std::any_of(hosts.links.begin(), hosts.links.end(), [&](const LinkPair& pair) {
                return (first ? pair.from : pair.to) == link.name && passes(pair);
            });
        if (!reached) {
            names.push_back(link.name);
        }
    }
    return names;
}

// What is wrong between two hosts, one line each.
std::vector<std::string> faults(const HostPair& hosts) {
    std::vector<std::string> lines;
    const auto say = [&](const std::string& what) { lines.push_back(what); };
    if (!hosts.problem.empty()) {
        say(
            fmt::format("{} and {}: {}; remedy: open the ports (DEFT_PORTS names a range), or see "
                        "deft doctor --peer",
                        hosts.from, hosts.to, hosts.problem));
        return lines;
    }
    if (hosts.from_version != hosts.to_version) {
        say(fmt::format("{} has deft {}, {} has {}; remedy: install one build everywhere",
                        hosts.from, hosts.from_version, hosts.to, hosts.to_version));
    }
    const auto name = [&](const LinkPair& pair) {
        return fmt::format("{} of {} to {} of {}", pair.from, hosts.from, pair.to, hosts.to);
    };
    for (const LinkPair& pair : hosts.links) {
        if (!passes(pair) && pair.one_network) {
            say(
                fmt::format("{}: {} ({} to {}); remedy: open the firewall, mend the cable or the "
                            "MTU, or leave the link out (DEFT_INTERFACES)",
                            name(pair), printable(pair.problem), printable(pair.from_address),
                            printable(pair.to_address)));
        }
    }
    for (const bool first : {true, false}) {
        for (const std::string& link : lonely(hosts, first)) {
            say(
                fmt::format("{} of {} reaches no link of {}; remedy: a route, or leave the link "
                            "out (DEFT_INTERFACES)",
                            link, first ? hosts.from : hosts.to, first ? hosts.to : hosts.from));
        }
    }
    for (const LinkPair& pair : hosts.links) {
        if (passes(pair) && loss_of(pair) > kMostSentAgain) {
            say(
                fmt::format("{}: {:.2f} % of the segments were sent again; remedy: look for "
                            "errors and drops on the way (ethtool -S, the switch)",
                            name(pair), loss_of(pair) * 100));
        }
    }
    return lines;
}

std::string link_head(const ProbedLink& link) {
    return link.mtu > 0 ? fmt::format("{} (MTU {})", printable(link.name), link.mtu)
                        : printable(link.name);
}

std::string matrix(const HostPair& hosts) {
    std::vector<Row> rows{{""}};
    for (const ProbedLink& to : hosts.to_links) {
        rows.front().push_back(link_head(to));
    }
    for (const ProbedLink& from : hosts.from_links) {
        rows.push_back({link_head(from)});
        for (const ProbedLink& to : hosts.to_links) {
            rows.back().push_back(cell(find(hosts, from.name, to.name)));
        }
    }
    return table(rows, 2);
}

std::string details(const HostPair& hosts) {
    std::vector<Row> rows{
        {"pair", "from", "to", "round trip us", "least", "path MTU", "sent again %"}};
    for (const LinkPair& pair : hosts.links) {
        if (!passes(pair)) {
            continue;
        }
        const auto us = [](const std::optional<double>& seconds) {
            return seconds ? fmt::format("{:.0f}", *seconds * 1e6) : "-";
        };
        const auto again = [](const std::optional<doctor::Flow>& flow) {
            return flow ? fmt::format("{:.2f}", flow->sent_again * 100) : "-";
        };
        rows.push_back({printable(pair.from + " - " + pair.to), printable(pair.from_address),
                        printable(pair.to_address), us(pair.median_round_trip_s),
                        us(pair.least_round_trip_s),
                        pair.there ? fmt::format("{}", pair.there->path_mtu) : "-",
                        again(pair.there) + " / " + again(pair.back)});
    }
    return rows.size() == 1 ? "" : table(rows, 2);
}

std::string text_of(const HostPair& hosts) {
    const auto passing = std::count_if(hosts.links.begin(), hosts.links.end(), passes);
    std::string text =
        fmt::format("{} (rows) and {} (columns): {} of {} pairs of links pass\n",
                    printable(hosts.from), printable(hosts.to), passing, hosts.links.size());
    if (hosts.problem.empty()) {
        text += "  Gbit/s there / back, one TCP connection at a time\n";
        text += matrix(hosts) + details(hosts);
    }
    return text;
}

// With three hosts and more: what the best pair of links carries, from the row to the column.
std::string host_matrix(const ProbeResult& result) {
    std::vector<std::string> names;
    for (const HostPair& hosts : result.pairs) {
        for (const std::string& name : {hosts.from, hosts.to}) {
            if (std::find(names.begin(), names.end(), name) == names.end()) {
                names.push_back(name);
            }
        }
    }
    if (names.size() < 3) {
        return "";
    }
    std::vector<Row> rows{{""}};
    for (const std::string& name : names) {
        rows.front().push_back(printable(name));
    }
    for (const std::string& from : names) {
        rows.push_back({printable(from)});
        for (const std::string& to : names) {
            std::optional<doctor::Flow> best;
            bool asked = false;
            for (const HostPair& hosts : result.pairs) {
                const bool forth = hosts.from == from && hosts.to == to;
                if (!forth && !(hosts.from == to && hosts.to == from)) {
                    continue;
                }
                asked = true;
                for (const LinkPair& pair : hosts.links) {
                    const std::optional<doctor::Flow>& flow = forth ? pair.there : pair.back;
                    if (passes(pair) && flow && (!best || flow->bytes_per_s > best->bytes_per_s)) {
                        best = flow;
                    }
                }
            }
            rows.back().push_back(best ? gbit(best) : asked ? "BLOCKED" : "");
        }
    }
    return "Gbit/s of the best pair of links, from the row to the column\n" + table(rows, 2) + "\n";
}

}  // namespace

int exit_code(const ProbeResult& result) {
    const bool unanswered =
        !result.problems.empty() ||
        std::any_of(result.pairs.begin(), result.pairs.end(),
                    [](const HostPair& hosts) { return !hosts.problem.empty(); });
    if (unanswered) {
        return 3;
    }
    return std::all_of(result.pairs.begin(), result.pairs.end(),
                       [](const HostPair& hosts) { return faults(hosts).empty(); })
               ? 0
               : 1;
}

std::string human_text(const ProbeResult& result) {
    std::string text;
    for (const std::string& problem : result.problems) {
        text += "error: " + printable(problem) + "\n";
    }
    for (const HostPair& hosts : result.pairs) {
        for (const std::string& line : faults(hosts)) {
            text += fmt::format("{}: {}\n", hosts.problem.empty() ? "warning" : "error",
                                printable(line));
        }
    }
    text = text.empty() ? "well: every link reaches the other side\n" : text;
    text += host_matrix(result);
    for (const HostPair& hosts : result.pairs) {
        text += text_of(hosts);
    }
    return text;
}

}  // namespace deft::tools::probe
