// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/settings_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

namespace deft::tools::doctor {
namespace {

using nlohmann::json;

constexpr const char* kAgain = "; run deft probe --json again, or unset it";
constexpr std::int64_t kOldest = 7 * 86400;  // as the plugin has it

bool own_address(const std::string& text, const std::vector<Interface>& own) {
    Address address;
    if (!parse_address(text, address)) {
        return false;
    }
    return address.loopback() || std::any_of(own.begin(), own.end(), [&](const Interface& link) {
               return std::any_of(
                   link.addresses.begin(), link.addresses.end(), [&](const Address& each) {
                       return each.family == address.family && each.bytes == address.bytes;
                   });
           });
}

bool measured_here(const json& document, const std::vector<Interface>& own) {
    for (const json& hosts : document.at("pairs")) {
        for (const json& pair : hosts.at("links")) {
            const bool measured = pair.contains("there") && pair.at("there").is_object();
            const bool ours = own_address(pair.at("from_address").get<std::string>(), own) ||
                              own_address(pair.at("to_address").get<std::string>(), own);
            if (measured && ours) {
                return true;
            }
        }
    }
    return false;
}

// ", section [user=alice]" of "FILE:4, section [user=alice]"; empty: it holds for all.
std::string section_of(const ConfigLine& line) {
    const auto comma = line.origin.find(", section ");
    return comma == line.origin.npos ? std::string() : line.origin.substr(comma);
}

}  // namespace

std::string probe_problem(std::string_view text, std::int64_t written, std::int64_t now,
                          const std::vector<Interface>& own) {
    try {
        const json document = json::parse(text);
        if (document.at("format") != "deft-probe" || document.at("version") != 1) {
            return fmt::format("it is no result of this release's deft probe --json{}", kAgain);
        }
        const std::int64_t at = document.value("measured_at", written);
        if (now - at > kOldest) {
            return fmt::format("it was measured {} days ago, 7 are allowed{}", (now - at) / 86400,
                               kAgain);
        }
        if (!measured_here(document, own)) {
            return fmt::format("it has no measured pair of this host's links{}", kAgain);
        }
    } catch (const json::exception&) {
        return fmt::format("it is no result of deft probe --json{}", kAgain);
    }
    return {};
}

std::string unreplaced_part(std::string_view pattern) {
    constexpr std::string_view kReplaced = "hjrp%";
    for (std::size_t at = 0; at + 1 < pattern.size(); ++at) {
        if (pattern[at] != '%') {
            continue;
        }
        if (kReplaced.find(pattern[at + 1]) == kReplaced.npos) {
            return std::string(pattern.substr(at, 2));
        }
        ++at;
    }
    return {};
}

std::vector<std::string> contradictions(const ConfigFile& file) {
    std::vector<std::string> found;
    for (auto line = file.lines.begin(); line != file.lines.end(); ++line) {
        for (auto other = file.lines.begin(); other != line; ++other) {
            if (other->name != line->name || other->kind != line->kind) {
                continue;
            }
            const std::string section = section_of(*line);
            const std::string before = section_of(*other);
            if (section == before) {
                found.push_back(fmt::format("{} sets {} a second time, after {}: the later counts",
                                            line->origin, line->written, other->origin));
            } else if (line->kind == ConfigLine::Kind::Force && !section.empty() &&
                       !before.empty() && line->value != other->value) {
                found.push_back(fmt::format(
                    "{} and {} both hold for this job and force {} to {} "
                    "and {}: the later counts",
                    other->origin, line->origin, line->name, other->value, line->value));
            }
        }
    }
    return found;
}

}  // namespace deft::tools::doctor
