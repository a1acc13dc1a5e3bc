// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/plugin_names.h"

#include <strings.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "softdev/net/table_net.h"

namespace softdev::net {
namespace {

constexpr size_t kMaxExternals = 14;  // 16 slots less IB and Socket
constexpr size_t kMaxNameLength = 254;
constexpr const char* kDefaultName = "libnccl-net.so";
constexpr const char* kStaticName = "STATIC_PLUGIN";

}  // namespace

int parse_nccl_version(const char* text, std::string* error) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < kOldestNcclVersion || value > 29999) {
        *error = std::string("SOFTDEV_NCCL_VERSION=") + text +
                 " is no NCCL release from 2.13 on; write it as NCCL does, e.g. 22809 for 2.28.9";
        return 0;
    }
    return static_cast<int>(value);
}

std::vector<int> abi_versions(int nccl_version) {
    const int minor = nccl_version / 100 % 100;
    const int newest = minor >= 30   ? 12
                       : minor >= 28 ? 11
                       : minor >= 26 ? 10
                       : minor >= 24 ? 9
                       : minor >= 20 ? 8
                       : minor >= 19 ? 7
                                     : 6;
    std::vector<int> versions;
    for (int abi = newest; abi >= kOldestAbi; --abi) {
        versions.push_back(abi);
    }
    return versions;
}

std::vector<std::string> plugin_names(const char* value, int nccl_version,
                                      std::vector<std::string>* remarks) {
    if (value == nullptr) {
        return {kDefaultName};
    }
    if (*value == '\0' || (nccl_version >= 22800 && strcasecmp(value, "none") == 0)) {
        return {};
    }
    if (nccl_version < 22700) {
        return {value};
    }
    std::vector<std::string> names;
    std::string_view rest = value;
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        const std::string name(rest.substr(0, comma));
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
        if (name.empty()) {
            continue;
        }
        if (name.size() > kMaxNameLength) {
            remarks->push_back(
                "NCCL_NET_PLUGIN: a name of " + std::to_string(name.size()) +
                " characters is left out, at most 254 are allowed: " + name.substr(0, 40) + "...");
        } else if (names.size() == kMaxExternals) {
            remarks->push_back("NCCL_NET_PLUGIN: " + name +
                               " is left out, at most 14 plugins are allowed");
        } else {
            names.push_back(name);
        }
    }
    return names;
}

bool means_static_plugin(const std::string& name, int nccl_version) {
    return nccl_version >= 22300 && strncasecmp(kStaticName, name.c_str(), name.size()) == 0;
}

std::vector<std::string> dlopen_candidates(const std::string& name, int nccl_version) {
    const std::string derived = "libnccl-net-" + name + ".so";
    if (name == kDefaultName) {
        return {name};
    }
    if (nccl_version < 22100) {
        return {derived};
    }
    const bool is_path = name.find('/') != std::string::npos;
    const bool is_soname = name.starts_with("lib") && name.ends_with(".so");
    if (is_path || is_soname) {
        return {name};
    }
    return {name, derived};
}

}  // namespace softdev::net
