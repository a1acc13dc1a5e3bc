// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/checking/trace.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "softdev/net/checking/state.h"

namespace softdev::net::checking {
namespace {

// -1: nobody wants to know. Open until the process ends.
int trace_file() {
    static const int file = [] {
        const char* const pattern = getenv("SOFTNET_CHECK_CALLS");
        if (pattern == nullptr || *pattern == '\0') {
            return -1;
        }
        std::string path = pattern;
        if (const size_t at = path.find("%p"); at != path.npos) {
            path.replace(at, 2, std::to_string(getpid()));
        }
        return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }();
    return file;
}

}  // namespace

void trace(const char* format, ...) {
    const int file = trace_file();
    if (file < 0) {
        return;
    }
    char line[512];
    const auto thread = static_cast<long>(syscall(SYS_gettid));
    int used = thread == getpid() ? snprintf(line, sizeof line, "main ")
                                  : snprintf(line, sizeof line, "%ld ", thread);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = std::min(used, static_cast<int>(sizeof line) - 2);
    line[used++] = '\n';
    [[maybe_unused]] const ssize_t written = write(file, line, static_cast<size_t>(used));
}

Label label(const Comm* comm) {
    Label one{"-"};
    if (comm != nullptr) {
        const char letter = comm->kind == CommKind::Send      ? 'S'
                            : comm->kind == CommKind::Receive ? 'R'
                                                              : 'L';
        snprintf(one.text, sizeof one.text, "%c%d", letter, comm->number);
    }
    return one;
}

}  // namespace softdev::net::checking
