// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <unistd.h>
#include <array>

#include "base/config_loader.h"

extern "C" char** environ;

namespace deft {
namespace {

constexpr std::array kVariables = {
#define DEFT_VARIABLE(key, name, type, unit, def, range, group, since, doc) \
    Variable{Key::key, name, ValueType::type, unit, def, range, VariableGroup::group, since, doc},
#include "base/config_table.def"
#undef DEFT_VARIABLE
};

}  // namespace

std::span<const Variable> variables() {
    return kVariables;
}

const Variable& variable(Key key) {
    return kVariables[static_cast<std::size_t>(key)];
}

void Config::assign_default(const Variable& variable) {
    Setting& setting = at(variable);
    setting = Setting{};
    setting.origin = "default";
    parse_value(variable, variable.default_text, setting);
}

void Config::switch_off(ValueSource source, const std::string& origin) {
    Setting& mode = settings_[static_cast<std::size_t>(Key::Mode)];
    mode = Setting{};
    parse_value(variable(Key::Mode), "off", mode);
    mode.source = source;
    mode.origin = origin;
}

Config Config::load(std::span<const char* const> environment, const std::string& system_file,
                    TextCheck check, const std::vector<std::string>& command) {
    ConfigLoader loader(JobIdentity(environment, command), environment, system_file);
    for (;;) {
        Config config = loader.load();
        if (check == nullptr || config.is(Key::Mode, "off") ||
            !loader.drop_wrong_texts(config, check(config))) {
            return config;
        }
    }
}

const Config& Config::process() {
    // Leaked on purpose: NCCL threads may still read settings while the process runs its
    // destructors.
    static const Config* const config = [] {
        std::size_t count = 0;
        while (environ != nullptr && environ[count] != nullptr) {
            ++count;
        }
        return new Config(load(std::span<const char* const>(environ, count), kSystemConfigFile,
                               process_text_problems));
    }();
    return *config;
}

std::string expand_pattern(std::string_view pattern, int rank, std::string_view job) {
    constexpr std::size_t kMostOfJob = 64;
    constexpr std::string_view kPlain =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    std::string name;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        switch (next) {
            case 'h': {
                char host[256] = "";
                ::gethostname(host, sizeof(host) - 1);
                name += host;
                break;
            }
            case 'r':
                name += std::to_string(rank);
                break;
            case 'p':
                name += std::to_string(::getpid());
                break;
            case 'j':
                for (const char c : job.substr(0, kMostOfJob)) {
                    name += kPlain.find(c) != kPlain.npos ? c : '_';
                }
                i += job.empty() && i + 2 < pattern.size() && pattern[i + 2] == '-' ? 1 : 0;
                break;
            case '%':
                name += '%';
                break;
            default:
                name += pattern[i];
                continue;
        }
        ++i;
    }
    return name;
}

}  // namespace deft
