// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/links_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "shim/planner/collective.h"
#include "shim/planner/presets.h"
#include "tools/planner/fields.h"

namespace deft::tools {

using planner::Fabric;
using planner::Link;

namespace {

constexpr double kDay = 86400;

Link preset(const std::string& where, const std::string& name, std::uint32_t ranks) {
    try {
        return planner::preset_link(name, ranks);
    } catch (const std::invalid_argument&) {
        std::vector<std::string> names;
        for (const auto& known : planner::link_presets()) {
            names.emplace_back(known.name);
        }
        throw InputError(fmt::format("{}: '{}' is neither a file nor a preset; known: {}", where,
                                     name, fmt::join(names, ", ")));
    }
}

Link link_from(const Field& from, std::uint32_t ranks) {
    from.only({"name", "preset", "gbit_per_s", "points", "alpha_s", "beta_s_per_byte", "latency_us",
               "algorithm", "per_message_us", "compute_slowdown", "overlap_penalty", "in_flight",
               "group", "source"});
    const int ways = int(from.has("preset")) + int(from.has("gbit_per_s")) +
                     int(from.has("points")) + int(from.has("beta_s_per_byte"));
    if (ways != 1) {
        from.fail("needs exactly one of preset, gbit_per_s, points, beta_s_per_byte");
    }
    Link link;
    const std::string name = from["name"].text();
    if (from.has("preset")) {
        try {
            link = planner::preset_link(from["preset"].text(), ranks);
        } catch (const std::invalid_argument& error) {
            from["preset"].fail(error.what());
        }
    } else if (from.has("gbit_per_s")) {
        const double rate = from["gbit_per_s"].number(1e-6, 1e6) * 1e9 / 8;
        const double hop = from.number_or("latency_us", 0, 0, 1e9) * 1e-6;
        const std::string algorithm = from.text_or("algorithm", "ring");
        if (algorithm == "ring") {
            link = planner::ring_link(name, ranks, hop, rate);
        } else if (algorithm == "tree") {
            link = planner::tree_link(name, ranks, hop, rate);
        } else {
            from["algorithm"].fail("neither \"ring\" nor \"tree\"");
        }
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
    } else {
        link.cost.alpha = from.number_or("alpha_s", 0, 0, kDay);
        link.cost.beta = from["beta_s_per_byte"].number(1e-18, 1);
    }
    link.name = name;
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

Fabric read_links(const std::string& what, std::uint32_t ranks) {
    if (what.ends_with(".toml")) {
        return links_from_json(what, parse_toml(what, read_file(what)), ranks);
    }
    if (what.ends_with(".json")) {
        return links_from_json(what, parse_json(what, read_file(what)), ranks);
    }
    Fabric fabric;
    fabric.name = what;
    for (std::size_t from = 0; from <= what.size();) {
        const auto comma = std::min(what.find(',', from), what.size());
        fabric.links.push_back(preset("--links", what.substr(from, comma - from), ranks));
        from = comma + 1;
    }
    if (const std::string why = fabric.problem(); !why.empty()) {
        throw InputError("--links: " + why);
    }
    return fabric;
}

}  // namespace deft::tools
