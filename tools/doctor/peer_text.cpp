// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/peer_text.h"

#include <nlohmann/json.hpp>

#include "tools/json_text.h"

namespace deft::tools::doctor {
namespace {

constexpr std::size_t kMostLinks = 64;
constexpr std::size_t kMostAddresses = 32;

constexpr Key kCompared[] = {
    Key::Mode,           Key::Gradients, Key::Plan,     Key::WarmUp,  Key::Guard,
    Key::MaxDelay,       Key::MaxMerge,  Key::Merge,    Key::Predict, Key::Optimizer,
    Key::MaxShadowBytes, Key::Lanes,     Key::LaneCtas, Key::Rdma,    Key::Ucx};

}  // namespace

std::map<std::string, std::string> settings_to_compare(const Config& config) {
    std::map<std::string, std::string> settings;
    for (const Key key : kCompared) {
        settings[variable(key).name] = config.text(key);
    }
    return settings;
}

std::string peer_info_text(const PeerInfo& info) {
    nlohmann::json links = nlohmann::json::array();
    for (const PeerInfo::Link& link : info.links) {
        nlohmann::json addresses = nlohmann::json::array();
        for (const Address& address : link.addresses) {
            addresses.push_back(address.text());
        }
        links.push_back({{"name", link.name},
                         {"addresses", addresses},
                         {"mtu", link.mtu},
                         {"speed_mbps", link.speed_mbps}});
    }
    const nlohmann::json document = {{"format", "deft-doctor-peer"},
                                     {"host", info.host},
                                     {"version", info.version},
                                     {"time", info.time},
                                     {"port", info.port},
                                     {"settings", info.settings},
                                     {"links", links}};
    return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool parse_peer_info(const std::string& text, PeerInfo& info) {
    try {
        const nlohmann::json document = parse_json_text(text);
        if (document.at("format") != "deft-doctor-peer") {
            return false;
        }
        document.at("host").get_to(info.host);
        document.at("version").get_to(info.version);
        document.at("time").get_to(info.time);
        document.at("port").get_to(info.port);
        document.at("settings").get_to(info.settings);
        for (const nlohmann::json& each : document.at("links")) {
            PeerInfo::Link link;
            each.at("name").get_to(link.name);
            link.mtu = each.value("mtu", 0);
            link.speed_mbps = each.value("speed_mbps", std::int64_t{0});
            for (const nlohmann::json& word : each.at("addresses")) {
                std::string name = word.get<std::string>();
                name = name.substr(0, name.find('%'));  // an interface of theirs
                Address address;
                if (parse_address(name, address) && link.addresses.size() < kMostAddresses) {
                    link.addresses.push_back(address);
                }
            }
            if (info.links.size() < kMostLinks) {
                info.links.push_back(std::move(link));
            }
        }
    } catch (const std::exception&) {
        return false;
    }
    return info.port > 0 && info.port < 65536;
}

}  // namespace deft::tools::doctor
