// SPDX-License-Identifier: Apache-2.0
// Settings from the environment and the one place where misuse is reported.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <string>
#include <vector>

namespace softdev {

enum class Strict { off, error, abort };

struct Settings {
    int devices = 8;
    int compute = 86;  ///< compute capability, 86 is 8.6
    Strict strict = Strict::error;
    bool pageable = false;
    double deadline_s = 60;
    std::string rank;                                  ///< of this process; empty: by device
    std::size_t memory_bytes = std::size_t{16} << 30;  ///< of each device
    std::vector<std::string> places;  ///< on PCI, "0000:01:00.0", one for each device
};

/// Read from the environment once, at the first call.
const Settings& settings();

inline bool strict() {
    return settings().strict != Strict::off;
}

void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
void report_list(int device, const char* format, std::va_list arguments);

}  // namespace softdev
