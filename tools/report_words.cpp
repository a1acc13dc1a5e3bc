// SPDX-License-Identifier: Apache-2.0
#include "tools/report_words.h"

#include <fmt/format.h>
#include <cstddef>
#include <iterator>

namespace deft::tools {

std::string size_text(double bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < std::size(units)) {
        bytes /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{:.0f} B", bytes)
                     : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string number_text(const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

// Before 2.9 the rule was another (2708 is 2.7.8).
std::string nccl_text(std::int64_t version) {
    if (version <= 0) {
        return "of unknown version";
    }
    return version < 10000
               ? fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100)
               : fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace deft::tools
