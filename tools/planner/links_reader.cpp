// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/links_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "planner/model/collective.h"
#include "planner/model/presets.h"
#include "tools/planner/fields.h"

namespace deft::tools {

using planner::Fabric;
using planner::Link;

namespace {

constexpr double kDay = 86400;

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

std::string known_presets() {
    std::vector<std::string> names;
    for (const auto& known : planner::link_presets()) {
        names.emplace_back(known.name);
    }
    return fmt::format("known: {}", fmt::join(names, ", "));
}

// The preset that is meant: its name in any case, or a beginning that only it has. "100Gb" alone
// is InfiniBand, as in the measurements its rate is from. Empty: none.
std::string preset_named(const std::string& name) {
    const std::string wanted = lower(name) == "100gb" ? "100gb-ib" : lower(name);
    std::string found;
    std::size_t matches = 0;
    for (const auto& known : planner::link_presets()) {
        const std::string label = lower(known.name);
        if (label == wanted) {
            return known.name;
        }
        if (!wanted.empty() && label.starts_with(wanted)) {
            found = known.name;
            ++matches;
        }
    }
    return matches == 1 ? found : "";
}

// The number in front of "2x10GbE", which it cuts off; 1 if there is none.
std::size_t take_times(std::string& name) {
    constexpr std::size_t kMost = 64;
    std::size_t times = 0;
    const char* const end = name.data() + name.size();
    const auto number = std::from_chars(name.data(), end, times);
    if (number.ec != std::errc() || number.ptr == end || *number.ptr != 'x' || times == 0 ||
        times > kMost) {
        return 1;
    }
    name.erase(0, static_cast<std::size_t>(number.ptr + 1 - name.data()));
    return times;
}

// Equal links are told apart by a number: 10GbE, 10GbE#2.
void add_preset(const std::string& label, std::uint32_t ranks, Fabric& fabric) {
    Link link = planner::preset_link(label, ranks);
    const std::string name = link.name;
    const auto taken = [&](const Link& other) { return other.name == link.name; };
    for (int next = 2; std::any_of(fabric.links.begin(), fabric.links.end(), taken); ++next) {
        link.name = fmt::format("{}#{}", name, next);
    }
    fabric.links.push_back(std::move(link));
}

// Reduce-scatter and all-gather inside the node, a ring between the nodes.
Link hierarchical(const Field& from, const std::string& name, std::uint32_t ranks, double rate,
                  double hop) {
    const auto local = static_cast<std::uint32_t>(from["ranks_per_node"].whole(1, 1024));
    if (ranks % local != 0) {
        from["ranks_per_node"].fail(
            fmt::format("{} ranks are no whole number of nodes of {}", ranks, local));
    }
    const double inner = from["node_gbit_per_s"].number(1e-6, 1e6) * 1e9 / 8;
    const double inner_hop = from.number_or("node_latency_us", 0, 0, 1e9) * 1e-6;
    return planner::hierarchical_link(name, ranks / local, local, inner_hop, inner, hop, rate);
}

Link of_rate(const Field& from, const std::string& name, std::uint32_t ranks) {
    const double rate = from["gbit_per_s"].number(1e-6, 1e6) * 1e9 / 8;
    const double hop = from.number_or("latency_us", 0, 0, 1e9) * 1e-6;
    const std::string algorithm = from.text_or("algorithm", "ring");
    if (algorithm == "tree") {
        return planner::tree_link(name, ranks, hop, rate);
    }
    if (algorithm == "hierarchical") {
        return hierarchical(from, name, ranks, rate, hop);
    }
    if (algorithm != "ring") {
        from["algorithm"].fail("none of \"ring\", \"tree\", \"hierarchical\"");
    }
    return planner::ring_link(name, ranks, hop, rate);
}

Link link_from(const Field& from, std::uint32_t ranks) {
    from.only({"name", "kind", "preset", "gbit_per_s", "points", "alpha_s", "beta_s_per_byte",
               "latency_us", "algorithm", "per_message_us", "compute_slowdown", "overlap_penalty",
               "in_flight", "group", "source", "ranks_per_node", "node_gbit_per_s",
               "node_latency_us"});
    const int ways = int(from.has("preset")) + int(from.has("gbit_per_s")) +
                     int(from.has("points")) + int(from.has("beta_s_per_byte"));
    if (ways != 1) {
        from.fail("needs exactly one of preset, gbit_per_s, points, beta_s_per_byte");
    }
    Link link;
    const std::string name = from["name"].text();
    if (from.has("preset")) {
        const std::string label = preset_named(from["preset"].text());
        if (label.empty()) {
            from["preset"].fail("'" + from["preset"].text() + "' is no preset; " + known_presets());
        }
        link = planner::preset_link(label, ranks);
    } else if (from.has("gbit_per_s")) {
        link = of_rate(from, name, ranks);
    } else if (from.has("points")) {
        const Field points = from["points"];
        for (std::size_t i = 0; i < points.size(); ++i) {
            if (points[i].size() != 2) {
                points[i].fail("not a pair of bytes and seconds");
            }
            link.cost.points.push_back(
                {points[i][std::size_t{0}].number(1, 0x1p50), points[i][1].number(1e-12, kDay)});
        }
        if (link.cost.points.empty()) {
            points.fail("there is none");
        }
        link.least_bytes = link.cost.points.front().bytes;
        link.most_bytes = link.cost.points.back().bytes;
    } else {
        link.cost.alpha = from.number_or("alpha_s", 0, 0, kDay);
        link.cost.beta = from["beta_s_per_byte"].number(1e-18, 1);
    }
    link.name = name;
    link.kind = from.text_or("kind", link.kind);
    link.per_message = from.number_or("per_message_us", link.per_message * 1e6, 0, 1e12) * 1e-6;
    link.compute_slowdown = from.number_or("compute_slowdown", 0, 0, 100);
    link.overlap_penalty = from.number_or("overlap_penalty", 0, 0, 100);
    if (from.has("in_flight")) {
        link.in_flight = static_cast<std::uint32_t>(from["in_flight"].whole(1, 1024));
    }
    link.group = from.text_or("group", "");
    link.source = from.text_or("source", link.source);
    if (const std::string why = link.cost.problem(); !why.empty()) {
        from.fail(why);
    }
    return link;
}

}  // namespace

Fabric links_from_json(const std::string& name, const nlohmann::json& json, std::uint32_t ranks) {
    const Field root(name, json);
    root.only({"name", "striped", "links", "groups"});
    Fabric fabric;
    fabric.name = root.text_or("name", name);
    fabric.striped = root.has("striped") && root["striped"].boolean();
    const Field links = root["links"];
    for (std::size_t i = 0; i < links.size(); ++i) {
        fabric.links.push_back(link_from(links[i], ranks));
    }
    if (root.has("groups")) {
        const Field groups = root["groups"];
        for (std::size_t i = 0; i < groups.size(); ++i) {
            groups[i].only({"name", "gbit_per_s"});
            fabric.groups.push_back(
                {groups[i]["name"].text(), groups[i]["gbit_per_s"].number(1e-6, 1e6) * 1e9 / 8});
        }
    }
    if (const std::string why = fabric.problem(); !why.empty()) {
        throw InputError(name + ": " + why);
    }
    return fabric;
}

Fabric links_from_toml(const std::string& name, const std::string& text, std::uint32_t ranks) {
    TomlLines lines;
    const nlohmann::json json = parse_toml(name, text, &lines);
    try {
        return links_from_json(name, json, ranks);
    } catch (const InputError& error) {
        // "name: links[1].rate: why": the line of the longest known field the complaint begins
        // with.
        const std::string_view what = error.what();
        if (!what.starts_with(name + ": ")) {
            throw;
        }
        const std::string rest(what.substr(name.size() + 2));
        std::size_t length = 0;
        std::size_t line = 0;
        for (const auto& [path, at] : lines) {
            const char after = rest.size() > path.size() ? rest[path.size()] : ':';
            if (path.size() > length && rest.starts_with(path) &&
                (after == ':' || after == '.' || after == '[')) {
                length = path.size();
                line = at;
            }
        }
        if (line == 0) {
            throw;
        }
        throw InputError(fmt::format("{}: line {}: {}", name, line, rest));
    }
}

Fabric read_links(const std::string& what, std::uint32_t ranks) {
    if (what.ends_with(".toml")) {
        return links_from_toml(what, read_file(what, kMostFileBytes), ranks);
    }
    if (what.ends_with(".json")) {
        return links_from_json(what, parse_json(what, read_file(what, kMostFileBytes)), ranks);
    }
    Fabric fabric;
    fabric.name = what;
    for (std::size_t from = 0; from <= what.size();) {
        const auto end = std::min(what.find_first_of(",+", from), what.size());
        std::string name = what.substr(from, end - from);
        // Some presets' own names begin with a number.
        const bool named = !preset_named(name).empty();
        const std::size_t times = named ? 1 : take_times(name);
        const std::string label = preset_named(name);
        if (label.empty()) {
            throw InputError(
                fmt::format("--links: '{}' is neither a file (*.toml, *.json) nor a preset, of "
                            "which several are written as 2x10GbE; {}",
                            name, known_presets()));
        }
        for (std::size_t i = 0; i < times; ++i) {
            add_preset(label, ranks, fabric);
        }
        from = end + 1;
    }
    if (const std::string why = fabric.problem(); !why.empty()) {
        throw InputError("--links: " + why);
    }
    return fabric;
}

}  // namespace deft::tools
