// SPDX-License-Identifier: Apache-2.0
// What was measured, for programs; and back, from a host that was asked to measure.
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "tools/json_text.h"
#include "tools/probe/probe_result.h"

namespace deft::tools::probe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostLinks = 4096;
constexpr std::size_t kMostPairs = 1 << 16;

Json links_of(const std::vector<ProbedLink>& links) {
    Json list = Json::array();
    for (const ProbedLink& link : links) {
        list.push_back({{"name", link.name}, {"mtu", link.mtu}, {"speed_mbps", link.speed_mbps}});
    }
    return list;
}

Json value(const std::optional<double>& number, double scale) {
    // To a thousandth, which is finer than any of them can be told.
    return number ? Json(std::round(*number * scale * 1e3) / 1e3) : Json(nullptr);
}

Json flow_of(const std::optional<doctor::Flow>& flow) {
    return flow ? Json{{"gbit_per_s", flow->bytes_per_s * 8e-9},
                       {"sent_again", flow->sent_again},
                       {"path_mtu", flow->path_mtu}}
                : Json(nullptr);
}

Json pair_of(const LinkPair& pair) {
    return {{"from", pair.from},
            {"to", pair.to},
            {"from_address", pair.from_address},
            {"to_address", pair.to_address},
            {"one_network", pair.one_network},
            {"problem", pair.problem},
            {"round_trip_us",
             {{"least", value(pair.least_round_trip_s, 1e6)},
              {"median", value(pair.median_round_trip_s, 1e6)}}},
            {"there", flow_of(pair.there)},
            {"back", flow_of(pair.back)}};
}

std::optional<double> number(const nlohmann::json& from, double scale) {
    return from.is_null() ? std::nullopt : std::optional(from.get<double>() * scale);
}

std::optional<doctor::Flow> flow(const nlohmann::json& from) {
    if (from.is_null()) {
        return std::nullopt;
    }
    return doctor::Flow{from.at("gbit_per_s").get<double>() / 8e-9,
                        from.at("sent_again").get<double>(), from.at("path_mtu").get<int>()};
}

void read_links(const nlohmann::json& from, std::vector<ProbedLink>& links) {
    for (const nlohmann::json& each : from) {
        if (links.size() < kMostLinks) {
            links.push_back({each.at("name"), each.at("mtu"), each.at("speed_mbps")});
        }
    }
}

LinkPair read_pair(const nlohmann::json& from) {
    LinkPair pair;
    from.at("from").get_to(pair.from);
    from.at("to").get_to(pair.to);
    from.at("from_address").get_to(pair.from_address);
    from.at("to_address").get_to(pair.to_address);
    from.at("one_network").get_to(pair.one_network);
    from.at("problem").get_to(pair.problem);
    pair.least_round_trip_s = number(from.at("round_trip_us").at("least"), 1e-6);
    pair.median_round_trip_s = number(from.at("round_trip_us").at("median"), 1e-6);
    pair.there = flow(from.at("there"));
    pair.back = flow(from.at("back"));
    return pair;
}

HostPair read_hosts(const nlohmann::json& from) {
    HostPair hosts;
    from.at("from").get_to(hosts.from);
    from.at("to").get_to(hosts.to);
    from.at("problem").get_to(hosts.problem);
    from.at("from_version").get_to(hosts.from_version);
    from.at("to_version").get_to(hosts.to_version);
    read_links(from.at("from_links"), hosts.from_links);
    read_links(from.at("to_links"), hosts.to_links);
    for (const nlohmann::json& each : from.at("links")) {
        if (hosts.links.size() < kMostLinks) {
            hosts.links.push_back(read_pair(each));
        }
    }
    return hosts;
}

}  // namespace

std::string json_text(const ProbeResult& result) {
    Json document{{"format", "deft-probe"},
                  {"version", 1},
                  {"measured_at", ::time(nullptr)},
                  {"exit_code", exit_code(result)}};
    document["pairs"] = Json::array();
    for (const HostPair& hosts : result.pairs) {
        Json links = Json::array();
        for (const LinkPair& pair : hosts.links) {
            links.push_back(pair_of(pair));
        }
        document["pairs"].push_back({{"from", hosts.from},
                                     {"to", hosts.to},
                                     {"problem", hosts.problem},
                                     {"from_version", hosts.from_version},
                                     {"to_version", hosts.to_version},
                                     {"from_links", links_of(hosts.from_links)},
                                     {"to_links", links_of(hosts.to_links)},
                                     {"links", links}});
    }
    document["problems"] = result.problems;
    return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool add_json(const std::string& text, ProbeResult& result, std::string& problem) {
    try {
        const nlohmann::json document = parse_json_text(text);
        if (document.at("format") != "deft-probe" || document.at("version") != 1) {
            problem = "it has another release of deft";
            return false;
        }
        if (document.at("pairs").empty()) {
            problem = "it measured nothing";
            return false;
        }
        for (const nlohmann::json& each : document.at("pairs")) {
            if (result.pairs.size() < kMostPairs) {
                result.pairs.push_back(read_hosts(each));
            }
        }
        return true;
    } catch (const std::exception&) {
        problem = "what it printed is no result of deft probe";
        return false;
    }
}

}  // namespace deft::tools::probe
