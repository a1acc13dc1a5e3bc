// SPDX-License-Identifier: Apache-2.0
// Sets environment variables for the length of a test.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

class Environment {
public:
    ~Environment() {
        for (auto entry = saved_.rbegin(); entry != saved_.rend(); ++entry) {
            if (entry->second) {
                setenv(entry->first.c_str(), entry->second->c_str(), 1);
            } else {
                unsetenv(entry->first.c_str());
            }
        }
    }
    void set(const std::string& name, const std::string& value) {
        save(name);
        setenv(name.c_str(), value.c_str(), 1);
    }
    void unset(const std::string& name) {
        save(name);
        unsetenv(name.c_str());
    }

private:
    void save(const std::string& name) {
        const char* value = std::getenv(name.c_str());
        saved_.emplace_back(name,
                            value != nullptr ? std::optional<std::string>(value) : std::nullopt);
    }
    std::vector<std::pair<std::string, std::optional<std::string>>> saved_;
};
