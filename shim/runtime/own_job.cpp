// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/own_job.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/config.h"
#include "base/unique_fd.h"

namespace deft {
namespace {

constexpr std::size_t kMostCommand = 1024;
constexpr std::size_t kMostId = 256;
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t nanoseconds(const timespec& time) {
    return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

std::string read_file(const char* path, std::size_t most) {
    const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    std::string text;
    std::array<char, 4096> block;
    while (file && text.size() < most) {
        const ssize_t got = ::read(file.get(), block.data(), block.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        text.append(block.data(), static_cast<std::size_t>(got));
    }
    return text;
}

// Nanoseconds since 1970 at which this process was started; 0: not known. proc(5), /proc/PID/stat:
// the 22nd field, in clock ticks since the host was started. The second may hold blanks and
// brackets.
std::int64_t start_time() {
    const std::string stat = read_file("/proc/self/stat", 4096);
    std::size_t at = stat.rfind(')');
    for (int field = 2; field < 22 && at != stat.npos; ++field) {
        at = stat.find(' ', at + 1);
    }
    const long ticks = ::sysconf(_SC_CLK_TCK);
    timespec since_start{};
    timespec now{};
    if (at == stat.npos || ticks <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &since_start) != 0 ||
        ::clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return 0;
    }
    const auto started = std::strtoll(stat.c_str() + at, nullptr, 10) * (kSecond / ticks);
    return nanoseconds(now) - (nanoseconds(since_start) - started);
}

}  // namespace

std::string command_in(std::string_view words) {
    std::string command(words.substr(0, kMostCommand));
    while (!command.empty() && command.back() == '\0') {
        command.pop_back();
    }
    for (char& c : command) {
        c = c == '\0' ? ' ' : c;
    }
    return words.size() > kMostCommand ? command + " ..." : command;
}

std::string utc_text(std::int64_t seconds) {
    const time_t when = seconds;
    tm parts{};
    std::array<char, 32> text{};
    if (::gmtime_r(&when, &parts) == nullptr ||
        ::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        return {};
    }
    return text.data();
}

OwnJob own_job() {
    const std::int64_t started = start_time();
    return {Config::process().job_id().substr(0, kMostId),
            command_in(read_file("/proc/self/cmdline", kMostCommand + 1)),
            started > 0 ? utc_text(started / kSecond) : "", started};
}

}  // namespace deft
