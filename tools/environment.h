// SPDX-License-Identifier: Apache-2.0
// The environment a command is started with, as a value that can be edited and looked at.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deft::tools {

class Environment {
public:
    Environment() = default;
    // Copies a NULL-terminated list of "NAME=value".
    explicit Environment(const char* const* entries);

    // The value getenv() would return.
    std::optional<std::string> get(std::string_view name) const;
    // Replaces the first entry of that name, drops the others, appends if there is none.
    void set(std::string_view name, std::string_view value);
    void unset(std::string_view name);

    // Views for Config::load() and execve(); the latter ends with NULL. Valid until the next set().
    std::vector<const char*> entries() const;
    std::vector<char*> for_exec();

private:
    std::vector<std::string> entries_;
};

}  // namespace deft::tools
