// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/report.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "softdev/cuda/softdev.h"
#include "softdev/cuda/thread.h"

namespace softdev {
namespace {

constexpr int kMostDevices = 1024;

std::atomic<unsigned long> report_count{0};
std::array<std::atomic<int>, kMostDevices> ranks_plus_one{};  // of each device; 0: none

// A value that makes no sense is said once and the default is used: the settings are read by the
// first CUDA call, which has no good way to fail.
double number(const char* name, double fallback, double low, double high) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
        return fallback;
    }
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high)) {
        std::fprintf(stderr, "softdev: warning: %s=%s is not a number from %g to %g; using %g\n",
                     name, text, low, high, fallback);
        return fallback;
    }
    return value;
}

// SOFTDEV_PCI: places in the order of the devices; devices it does not name get buses of their own.
std::vector<std::string> read_places(int devices) {
    std::vector<std::string> places;
    const char* const text = std::getenv("SOFTDEV_PCI");
    std::istringstream list(text != nullptr ? text : "");
    std::string item;
    while (static_cast<int>(places.size()) < devices && std::getline(list, item, ',')) {
        unsigned domain = 0;
        unsigned bus = 0;
        unsigned slot = 0;
        char place[32];
        if (std::sscanf(item.c_str(), "%x:%x:%x.0", &domain, &bus, &slot) != 3 || domain > 0xffff ||
            bus > 0xff || slot > 0x1f) {
            std::fprintf(stderr,
                         "softdev: warning: SOFTDEV_PCI: %s is no place like 0000:01:00.0\n",
                         item.c_str());
            break;
        }
        std::snprintf(place, sizeof place, "%04x:%02x:%02x.0", domain, bus, slot);
        places.emplace_back(place);
    }
    for (int device = static_cast<int>(places.size()); device < devices; ++device) {
        char place[32];
        std::snprintf(place, sizeof place, "%04x:%02x:00.0", device / 255, device % 255 + 1);
        places.emplace_back(place);
    }
    return places;
}

Settings read_settings() {
    Settings s;
    s.devices = static_cast<int>(number("SOFTDEV_DEVICES", s.devices, 0, kMostDevices));
    s.compute = static_cast<int>(number("SOFTDEV_COMPUTE", s.compute, 50, 129));
    s.places = read_places(s.devices);
    s.pageable = number("SOFTDEV_PAGEABLE", 0, 0, 1) != 0;
    s.deadline_s = number("SOFTDEV_DEADLINE", s.deadline_s, 0.001, 1e9);
    s.memory_bytes = static_cast<std::size_t>(
        number("SOFTDEV_MEMORY", static_cast<double>(s.memory_bytes), 1, 1e15));
    if (const char* rank = std::getenv("SOFTDEV_RANK")) {
        s.rank = rank;
    }
    const char* strict = std::getenv("SOFTDEV_STRICT");
    if (strict != nullptr && *strict != '\0') {
        if (std::strcmp(strict, "off") == 0) {
            s.strict = Strict::off;
        } else if (std::strcmp(strict, "abort") == 0) {
            s.strict = Strict::abort;
        } else if (std::strcmp(strict, "error") != 0) {
            std::fprintf(stderr,
                         "softdev: warning: SOFTDEV_STRICT=%s is none of error, abort, off; "
                         "using error\n",
                         strict);
        }
    }
    return s;
}

}  // namespace

const Settings& settings() {
    static const Settings value = read_settings();
    return value;
}

void report_list(int device, const char* format, std::va_list arguments) {
    if (!strict()) {
        return;
    }
    std::string rank = settings().rank;
    if (rank.empty() && device >= 0 && device < kMostDevices) {
        const int known = ranks_plus_one[static_cast<std::size_t>(device)].load();
        rank = known > 0 ? std::to_string(known - 1) : "";
    }
    // One write() of one line, so that the lines of several ranks on one stderr do not mix.
    char line[1024];
    int used = !rank.empty()
                   ? std::snprintf(line, sizeof line, "softdev: error: [rank %.16s] ", rank.c_str())
                   : std::snprintf(line, sizeof line, "softdev: error: ");
    const int more = std::vsnprintf(line + used, sizeof line - 1 - static_cast<std::size_t>(used),
                                    format, arguments);
    used += more > 0 ? more : 0;
    if (used > static_cast<int>(sizeof line) - 2) {
        used = static_cast<int>(sizeof line) - 2;
    }
    line[used] = '\n';
    if (write(STDERR_FILENO, line, static_cast<std::size_t>(used) + 1) < 0) {
        // Nowhere left to say it; the count and the API error remain.
    }
    report_count.fetch_add(1);
    if (settings().strict == Strict::abort) {
        std::abort();
    }
}

void report(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report_list(current_device(), format, arguments);
    va_end(arguments);
}

}  // namespace softdev

extern "C" void softdevReport(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    softdev::report_list(softdev::current_device(), format, arguments);
    va_end(arguments);
}

extern "C" void softdevReportOn(CUdevice device, const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    softdev::report_list(device, format, arguments);
    va_end(arguments);
}

extern "C" void softdevSetDeviceRank(CUdevice device, int rank) {
    if (device >= 0 && device < softdev::kMostDevices) {
        softdev::ranks_plus_one[static_cast<std::size_t>(device)].store(rank < 0 ? 0 : rank + 1);
    }
}

extern "C" CUdevice softdevCurrentDevice(void) {
    return softdev::current_device();
}

extern "C" unsigned long softdevReports(void) {
    return softdev::report_count.load();
}
