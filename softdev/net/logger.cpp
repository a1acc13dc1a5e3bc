// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/logger.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softdev::net {
namespace {

int wanted_level() {
    const char* value = std::getenv("NCCL_DEBUG");
    if (value == nullptr) {
        return DEFT_NET_LOG_WARN;
    }
    static constexpr struct {
        const char* name;
        int level;
    } levels[] = {{"VERSION", DEFT_NET_LOG_VERSION},
                  {"WARN", DEFT_NET_LOG_WARN},
                  {"INFO", DEFT_NET_LOG_INFO},
                  {"ABORT", DEFT_NET_LOG_ABORT},
                  {"TRACE", DEFT_NET_LOG_TRACE}};
    for (const auto& entry : levels) {
        if (strcasecmp(value, entry.name) == 0) {
            return entry.level;
        }
    }
    return DEFT_NET_LOG_WARN;
}

[[gnu::format(printf, 5, 6)]] void to_standard_error(int level, unsigned long, const char*, int,
                                                     const char* format, ...) {
    if (level > wanted_level()) {
        return;
    }
    const int saved = errno;
    char line[1024];
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    int used = snprintf(line, sizeof line, "%s:%d:%ld NCCL %s ", host, getpid(),
                        syscall(SYS_gettid), level == DEFT_NET_LOG_WARN ? "WARN" : "INFO");
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    if (used > static_cast<int>(sizeof line) - 2) {
        used = sizeof line - 2;
    }
    line[used++] = '\n';
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, used);
    errno = saved;
}

std::atomic<deft_net_logger_t> current{to_standard_error};

}  // namespace

void set_logger(deft_net_logger_t logger) {
    current.store(logger != nullptr ? logger : to_standard_error);
}

deft_net_logger_t logger() {
    return current.load(std::memory_order_relaxed);
}

}  // namespace softdev::net
