// SPDX-License-Identifier: Apache-2.0
// What the companion has told of modules, by their numbers; of a job that makes modules without end
// the oldest are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace deft::director {

// Threads: the caller's matter. May throw std::bad_alloc.
template <class Module, std::size_t kMost>
class LatestModules {
public:
    // Of a module that is new: Module{}. Valid until of() is asked for another one.
    Module& of(std::uint32_t number) {
        static_assert(kMost > 0);
        Module& module = modules_[number];
        while (modules_.size() > kMost) {
            const auto first = modules_.begin();
            modules_.erase(first->first != number ? first : std::next(first));
        }
        return module;
    }
    // nullptr: there is none; valid until of() is asked for a new one.
    [[nodiscard]] Module* find(std::uint32_t number) {
        const auto found = modules_.find(number);
        return found != modules_.end() ? &found->second : nullptr;
    }

private:
    std::map<std::uint32_t, Module> modules_;
};

}  // namespace deft::director
