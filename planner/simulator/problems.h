// SPDX-License-Identifier: Apache-2.0
// What is wrong with a plan, a line each: the first ones say enough.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace deft::planner {

class Problems {
public:
    void report(std::string what) {
        if (lines_.size() < kMost) {
            lines_.push_back(std::move(what));
        }
    }
    bool empty() const { return lines_.empty(); }
    std::vector<std::string> take() { return std::move(lines_); }

private:
    static constexpr std::size_t kMost = 20;
    std::vector<std::string> lines_;
};

// "transfers[3]: "
inline std::string at(const char* what, std::size_t index) {
    return std::string(what) + "[" + std::to_string(index) + "]: ";
}

}  // namespace deft::planner
