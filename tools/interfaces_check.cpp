// SPDX-License-Identifier: Apache-2.0
#include "tools/interfaces_check.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <algorithm>
#include <string_view>
#include <vector>

namespace deft::tools {
namespace {

std::vector<std::string> interfaces_of_host() {
    std::vector<std::string> names;
    if (struct if_nameindex* list = ::if_nameindex()) {
        for (const struct if_nameindex* item = list; item->if_index != 0; ++item) {
            names.emplace_back(item->if_name);
        }
        ::if_freenameindex(list);
    }
    return names;
}

// "127.0.0.2@1gbit": an address as a link of its own, for debugging; the plugin checks the rest.
bool is_address(std::string_view item) {
    const std::string address(item.substr(0, item.find('@')));
    in6_addr buffer{};
    return ::inet_pton(AF_INET, address.c_str(), &buffer) == 1 ||
           ::inet_pton(AF_INET6, address.c_str(), &buffer) == 1;
}

}  // namespace

std::string check_interfaces(const Setting& setting,
                             const std::function<void(const std::string&)>& warn) {
    std::string_view list = setting.text;
    if (list.empty()) {
        return {};
    }
    const bool exclude = list.front() == '^';
    list.remove_prefix(exclude ? 1 : 0);
    const bool all_exact = !list.empty() && list.front() == '=';
    list.remove_prefix(all_exact ? 1 : 0);

    const std::vector<std::string> present = interfaces_of_host();
    std::vector<std::string> named;
    std::vector<std::string> unmatched;
    while (!list.empty()) {
        const auto comma = list.find(',');
        std::string_view item = list.substr(0, comma);
        list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
        const bool exact = all_exact || item.starts_with('=');
        item.remove_prefix(item.starts_with('=') ? 1 : 0);
        if (is_address(item)) {
            named.emplace_back(item);
            continue;
        }
        item = item.substr(0, item.find(':'));  // NCCL also accepts "name:port"
        if (item.empty()) {
            continue;
        }
        bool matched = false;
        for (const std::string& name : present) {
            if (exact ? name == item : name.starts_with(item)) {
                named.push_back(name);
                matched = true;
            }
        }
        if (!matched) {
            unmatched.emplace_back(item);
        }
    }
    const bool nothing_left =
        exclude ? std::all_of(present.begin(), present.end(),
                              [&](const std::string& name) {
                                  return std::find(named.begin(), named.end(), name) != named.end();
                              })
                : named.empty();
    if (nothing_left) {
        return fmt::format("DEFT_INTERFACES='{}' ({}): no interface of this host {} (it has {})",
                           setting.text, setting.origin, exclude ? "is left" : "has such a name",
                           fmt::format("{}", fmt::join(present, ", ")));
    }
    for (const std::string& item : exclude ? std::vector<std::string>() : unmatched) {
        warn(fmt::format("DEFT_INTERFACES='{}' ({}): no interface of this host matches '{}'",
                         setting.text, setting.origin, item));
    }
    return {};
}

}  // namespace deft::tools
