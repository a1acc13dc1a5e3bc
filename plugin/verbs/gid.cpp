// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/gid.h"

#include <algorithm>
#include <cstdlib>

namespace deft::net {
namespace {

constexpr int kNoUse = 4;

bool ipv4(const deft_verbs_gid_t& gid) {
    return std::all_of(gid.raw, gid.raw + 10, [](std::uint8_t byte) { return byte == 0; }) &&
           gid.raw[10] == 0xff && gid.raw[11] == 0xff;
}

// The less the better.
int rank_of(const RdmaGid& entry) {
    const auto gid = parse_gid(entry.gid);
    const bool second = entry.type == "RoCE v2";
    if (!entry.here || !gid || (!second && entry.type != "IB/RoCE v1")) {
        return kNoUse;
    }
    const bool link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
    const bool empty = std::all_of(gid->raw, gid->raw + 16, [](std::uint8_t b) { return b == 0; });
    if (link_local || empty) {
        return kNoUse;
    }
    return (second ? 0 : 2) + (ipv4(*gid) ? 0 : 1);
}

}  // namespace

std::optional<deft_verbs_gid_t> parse_gid(const std::string& text) {
    constexpr std::size_t groups = 8;
    if (text.size() != groups * 5 - 1) {
        return std::nullopt;
    }
    deft_verbs_gid_t gid{};
    for (std::size_t i = 0; i < groups; ++i) {
        const std::string group = text.substr(i * 5, 4);
        char* end = nullptr;
        const unsigned long value = std::strtoul(group.c_str(), &end, 16);
        const bool hexadecimal = std::all_of(group.begin(), group.end(), [](unsigned char c) {
            return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        });
        if (!hexadecimal || (i + 1 < groups && text[i * 5 + 4] != ':')) {
            return std::nullopt;
        }
        gid.raw[i * 2] = static_cast<std::uint8_t>(value >> 8);
        gid.raw[i * 2 + 1] = static_cast<std::uint8_t>(value & 0xff);
    }
    return gid;
}

const RdmaGid* choose_gid(const RdmaPort& port, int wanted) {
    if (wanted >= 0) {
        const auto found = std::find_if(port.gids.begin(), port.gids.end(),
                                        [&](const RdmaGid& gid) { return gid.index == wanted; });
        return found == port.gids.end() ? nullptr : &*found;
    }
    if (!port.ethernet()) {
        return port.gids.empty() ? nullptr : &port.gids.front();
    }
    const auto best = std::min_element(
        port.gids.begin(), port.gids.end(),
        [](const RdmaGid& a, const RdmaGid& b) { return rank_of(a) < rank_of(b); });
    return best == port.gids.end() || rank_of(*best) == kNoUse ? nullptr : &*best;
}

}  // namespace deft::net
