// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace softdev::verbs {
namespace {

constexpr std::size_t kMostPorts = 16;

bool whole_number(const std::string& text, int base, std::uint64_t& value) {
    char* end = nullptr;
    value = std::strtoull(text.c_str(), &end, base);
    return !text.empty() && *end == '\0' && text[0] != '-';
}

bool read_word(const std::string& word, PortSettings& port, std::uint64_t& guid,
               std::uint64_t& ece) {
    if (word == "ib" || word == "roce") {
        port.infiniband = word == "ib";
        return true;
    }
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string text = equals == std::string::npos ? "" : word.substr(equals + 1);
    std::uint64_t value = 0;
    if (key == "address") {
        port.address = text;
        return !text.empty();
    }
    if (key == "guid") {
        return whole_number(text, 16, guid);
    }
    if (key == "ece") {
        return whole_number(text, 16, ece) && ece <= 0xffffffff;
    }
    if (!whole_number(text, 10, value)) {
        return false;
    }
    if (key == "rate") {
        port.gbit = static_cast<unsigned>(value);
        return value >= 1 && value <= 800;
    }
    if (key == "mtu") {
        port.mtu = static_cast<unsigned>(value);
        return value >= 256 && value <= 4096 && (value & (value - 1)) == 0;
    }
    return false;
}

bool read_port(const std::string& line, std::vector<DeviceSettings>& devices, std::string& error) {
    std::istringstream words(line);
    std::string name;
    std::string word;
    PortSettings port;
    std::uint64_t guid = 0;
    std::uint64_t ece = 0;
    if (!(words >> name) || name[0] == '#') {
        return true;
    }
    if (!(words >> port.netdev)) {
        error = "'" + line + "' names no netdev";
        return false;
    }
    while (words >> word) {
        if (!read_word(word, port, guid, ece)) {
            error = "'" + word +
                    "' is not ib, roce, address=IP, rate=GBIT, mtu=BYTES, guid=HEX or ece=HEX";
            return false;
        }
    }
    auto device = std::find_if(devices.begin(), devices.end(),
                               [&](const DeviceSettings& other) { return other.name == name; });
    if (device == devices.end()) {
        device = devices.insert(devices.end(), {name, 0, 0, {}});
    }
    if (name.size() > 60 || device->ports.size() == kMostPorts) {
        error = "'" + name + "' is too long a name, or has too many ports";
        return false;
    }
    if (guid != 0) {
        device->guid = guid;
    }
    if (ece != 0) {
        device->ece = static_cast<std::uint32_t>(ece);
    }
    device->ports.push_back(port);
    return true;
}

}  // namespace

std::optional<std::vector<DeviceSettings>> parse_devices(const std::string& text,
                                                         std::string& error) {
    std::string lines = text;
    std::replace(lines.begin(), lines.end(), ';', '\n');
    std::istringstream all(lines);
    std::vector<DeviceSettings> devices;
    for (std::string line; std::getline(all, line);) {
        if (!read_port(line, devices, error)) {
            return std::nullopt;
        }
    }
    return devices;
}

std::optional<std::vector<DeviceSettings>> devices_of_environment(std::string& error) {
    const char* const text = std::getenv("SOFTDEV_VERBS");
    if (text == nullptr || *text == '\0') {
        return std::nullopt;
    }
    if (*text != '/') {
        return parse_devices(text, error);
    }
    std::ifstream file(text);
    std::ostringstream content;
    if (!file || !(content << file.rdbuf())) {
        error = std::string(text) + " cannot be read";
        return std::nullopt;
    }
    return parse_devices(content.str(), error);
}

}  // namespace softdev::verbs
