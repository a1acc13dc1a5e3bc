// SPDX-License-Identifier: Apache-2.0
#include "tools/environment.h"

#include <algorithm>

namespace deft::tools {
namespace {

bool has_name(std::string_view entry, std::string_view name) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace

Environment::Environment(const char* const* entries) {
    for (; entries != nullptr && *entries != nullptr; ++entries) {
        entries_.emplace_back(*entries);
    }
}

std::optional<std::string> Environment::get(std::string_view name) const {
    for (const std::string& entry : entries_) {
        if (has_name(entry, name)) {
            return entry.substr(name.size() + 1);
        }
    }
    return std::nullopt;
}

void Environment::set(std::string_view name, std::string_view value) {
    const std::string entry = std::string(name) + "=" + std::string(value);
    const auto same = [&](const std::string& other) { return has_name(other, name); };
    const auto first = std::find_if(entries_.begin(), entries_.end(), same);
    if (first == entries_.end()) {
        entries_.push_back(entry);
        return;
    }
    *first = entry;
    entries_.erase(std::remove_if(first + 1, entries_.end(), same), entries_.end());
}

void Environment::unset(std::string_view name) {
    std::erase_if(entries_, [&](const std::string& entry) { return has_name(entry, name); });
}

std::vector<const char*> Environment::entries() const {
    std::vector<const char*> list;
    for (const std::string& entry : entries_) {
        list.push_back(entry.c_str());
    }
    return list;
}

std::vector<char*> Environment::for_exec() {
    std::vector<char*> list;
    for (std::string& entry : entries_) {
        list.push_back(entry.data());
    }
    list.push_back(nullptr);
    return list;
}

}  // namespace deft::tools
