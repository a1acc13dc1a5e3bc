// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/networks.h"

#include <strings.h>
#include <algorithm>

namespace deft::executor {
namespace {

constexpr std::size_t kMaxName = 63;

// "IB, Socket" is how people write lists.
std::string_view without_blanks(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    const std::size_t last = text.find_last_not_of(" \t");
    return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

bool is_name(std::string_view name) {
    return !name.empty() && name.size() <= kMaxName &&
           std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

bool parse_networks(std::string_view text, std::vector<std::string>& networks,
                    std::string& problem) {
    networks.clear();
    if (text == "none") {
        return true;
    }
    std::vector<std::string> found;
    while (!text.empty()) {
        const auto comma = text.find(',');
        const std::string name(without_blanks(text.substr(0, comma)));
        if (!is_name(name)) {
            problem = "'" + name + "' is no name of a network";
            return false;
        }
        const bool twice = std::any_of(found.begin(), found.end(), [&](const std::string& other) {
            return ::strcasecmp(other.c_str(), name.c_str()) == 0;
        });
        if (twice || found.size() == kMaxNetworks) {
            problem = twice ? "'" + name + "' stands there twice"
                            : "more than " + std::to_string(kMaxNetworks) + " networks";
            return false;
        }
        found.push_back(name);
        if (comma != text.npos && comma + 1 == text.size()) {
            problem = "a name is missing after the last comma";
            return false;
        }
        text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
    }
    networks = std::move(found);
    return true;
}

}  // namespace deft::executor
