// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <strings.h>
#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"

namespace softdev::nccl {
namespace {

struct Settings {
    bool ready = false;
    int level = kLogNone;
    unsigned long mask = kSubsysInit | kSubsysBootstrap | kSubsysEnv;  // NCCL's default for INFO
    FILE* out = nullptr;
    bool version_printed = false;
};

std::mutex g_mutex;
Settings g_settings;
std::string g_last_error;
std::atomic<int> g_level{-1};  // -1: not read yet
thread_local int t_device = -1;

int parse_level(const std::string& text) {
    static const char* const names[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    for (int i = 0; i < 6; ++i) {
        if (strcasecmp(text.c_str(), names[i]) == 0) {
            return i;
        }
    }
    return kLogNone;
}

unsigned long parse_mask(std::string text) {
    static const char* const names[] = {"INIT",      "COLL", "P2P",     "SHM",  "NET",   "GRAPH",
                                        "TUNING",    "ENV",  "ALLOC",   "CALL", "PROXY", "NVLS",
                                        "BOOTSTRAP", "REG",  "PROFILE", "RAS"};
    const bool negate = text.starts_with("^");
    if (negate) {
        text.erase(0, 1);
    }
    unsigned long mask = 0;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const std::string name = text.substr(at, comma - at);
        if (strcasecmp(name.c_str(), "ALL") == 0) {
            mask = kSubsysAll;
        }
        for (size_t i = 0; i < std::size(names); ++i) {
            if (strcasecmp(name.c_str(), names[i]) == 0) {
                mask |= 1ul << i;
            }
        }
        at = comma + 1;
    }
    return negate ? ~mask : mask;
}

std::string expand(const std::string& pattern) {
    std::string path;
    for (size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '%' || i + 1 == pattern.size()) {
            path += pattern[i];
            continue;
        }
        switch (pattern[++i]) {
            case 'h':
                path += host_name();
                break;
            case 'p':
                path += std::to_string(getpid());
                break;
            case '%':
                path += '%';
                break;
            default:
                path += '%';
                path += pattern[i];
        }
    }
    return path;
}

void read_settings_locked() {
    if (g_settings.ready) {
        return;
    }
    const auto debug = env_text("NCCL_DEBUG");
    g_settings.level = debug ? parse_level(*debug) : kLogNone;
    if (const auto subsystems = env_text("NCCL_DEBUG_SUBSYS")) {
        g_settings.mask = parse_mask(*subsystems);
    }
    g_settings.out = stdout;
    const auto file = env_text("NCCL_DEBUG_FILE");
    // NCCL ignores the file below WARN ("version" goes to stdout).
    if (file && g_settings.level > kLogVersion) {
        if (FILE* opened = std::fopen(expand(*file).c_str(), "w")) {
            g_settings.out = opened;
        }
    }
    g_settings.ready = true;
    g_level.store(g_settings.level);
}

int level_now() {
    const int level = g_level.load();
    if (level >= 0) {
        return level;
    }
    std::lock_guard lock(g_mutex);
    read_settings_locked();
    return g_settings.level;
}

void write_line(const char* tag, const std::string& text) {
    std::lock_guard lock(g_mutex);
    read_settings_locked();
    const std::string line =
        format("%s:%d:%ld [%d] %s%s\n", host_name().c_str(), static_cast<int>(getpid()),
               static_cast<long>(syscall(SYS_gettid)), std::max(t_device, 0), tag, text.c_str());
    std::fwrite(line.data(), 1, line.size(), g_settings.out);
    std::fflush(g_settings.out);
}

std::string vformat(const char* text, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, text, arguments);
    std::string out(length > 0 ? static_cast<size_t>(length) : 0, '\0');
    std::vsnprintf(out.data(), out.size() + 1, text, again);
    va_end(again);
    return out;
}

}  // namespace

std::string format(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    std::string out = vformat(text, arguments);
    va_end(arguments);
    return out;
}

void set_last_error(const std::string& text) {
    std::lock_guard lock(g_mutex);
    g_last_error = text;
}

const char* last_error() {
    // The pointer must stay valid after the call: each thread keeps its copy.
    static thread_local std::string copy;
    std::lock_guard lock(g_mutex);
    copy = g_last_error;
    return copy.c_str();
}

bool log_enabled(int level, unsigned long subsystem) {
    if (level_now() < level) {
        return false;
    }
    if (level <= kLogWarn) {
        return true;
    }
    std::lock_guard lock(g_mutex);
    return (g_settings.mask & subsystem) != 0;
}

void log_info(unsigned long subsystem, const char* text, ...) {
    if (!log_enabled(kLogInfo, subsystem)) {
        return;
    }
    va_list arguments;
    va_start(arguments, text);
    write_line("NCCL INFO ", vformat(text, arguments));
    va_end(arguments);
}

void log_warn(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    const std::string line = vformat(text, arguments);
    va_end(arguments);
    set_last_error(line);
    if (log_enabled(kLogWarn, kSubsysAll)) {
        write_line("NCCL WARN ", line);
    }
}

void log_version() {
    if (level_now() < kLogVersion) {
        return;
    }
    std::lock_guard lock(g_mutex);
    if (g_settings.version_printed) {
        return;
    }
    g_settings.version_printed = true;
    const int v = nccl_version();
    std::fprintf(g_settings.out, "NCCL version %d.%d.%d+softdev\n", v / 10000, v / 100 % 100,
                 v % 100);
    std::fflush(g_settings.out);
}

void log_reset() {
    std::lock_guard lock(g_mutex);
    if (g_settings.out != nullptr && g_settings.out != stdout) {
        std::fclose(g_settings.out);
    }
    g_settings = Settings{};
    g_level.store(-1);
}

void plugin_logger(int level, unsigned long subsystems, const char* file, int line,
                   const char* text, ...) {
    if (!log_enabled(level, subsystems)) {
        return;
    }
    va_list arguments;
    va_start(arguments, text);
    const std::string message = vformat(text, arguments);
    va_end(arguments);
    if (level == kLogWarn) {
        write_line(format("%s:%d NCCL WARN ", file, line).c_str(), message);
    } else {
        write_line(level == kLogTrace ? "NCCL TRACE " : "NCCL INFO ", message);
    }
}

void log_set_device(int device) {
    t_device = device;
}

}  // namespace softdev::nccl
