// SPDX-License-Identifier: Apache-2.0
#include "topology/nccl_settings.h"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "base/unique_fd.h"

namespace deft {
namespace {

constexpr std::size_t kLongest = 1 << 20;  // of a settings file
constexpr std::string_view kFile = "libnccl-net-deft.so";

std::string text_of(const std::string& path) {
    std::string text;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char buffer[4096];
    ssize_t bytes = 0;
    while (file && text.size() < kLongest &&
           (bytes = ::read(file.get(), buffer, sizeof buffer)) > 0) {
        text.append(buffer, static_cast<std::size_t>(bytes));
    }
    return text;
}

// As NCCL finds it: what the user database says, not $HOME.
std::string home() {
    std::vector<char> buffer(16384);
    passwd entry{};
    passwd* found = nullptr;
    return ::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
                   found != nullptr && found->pw_dir != nullptr
               ? found->pw_dir
               : "";
}

}  // namespace

std::optional<std::string> nccl_setting_in(std::string_view text, std::string_view name) {
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text = end == text.npos ? std::string_view() : text.substr(end + 1);
        if (line.ends_with('\r')) {
            line.remove_suffix(1);
        }
        const std::size_t equals = line.find('=');
        if (!line.starts_with('#') && equals != line.npos && line.substr(0, equals) == name) {
            return std::string(line.substr(equals + 1));
        }
    }
    return std::nullopt;
}

std::optional<std::string> nccl_setting(const char* name) {
    if (const char* const value = std::getenv(name)) {
        return value;
    }
    const char* const named = std::getenv("NCCL_CONF_FILE");
    const std::string user =
        named != nullptr && *named != '\0' ? std::string(named) : home() + "/.nccl.conf";
    if (auto value = nccl_setting_in(text_of(user), name)) {
        return value;
    }
    return nccl_setting_in(text_of("/etc/nccl.conf"), name);
}

bool names_deft(std::string_view plugins, bool alone) {
    bool found = false;
    while (!plugins.empty()) {
        const auto comma = plugins.find(',');
        const std::string_view name = plugins.substr(0, comma);
        plugins = comma == plugins.npos ? std::string_view() : plugins.substr(comma + 1);
        const auto slash = name.rfind('/');
        const std::string_view file = slash == name.npos ? name : name.substr(slash + 1);
        const bool deft = name == "deft" || file == kFile || name == "STATIC_PLUGIN";
        if (alone && !deft && !name.empty()) {
            return false;
        }
        if (deft) {
            found = true;
        }
    }
    return found;
}

}  // namespace deft
