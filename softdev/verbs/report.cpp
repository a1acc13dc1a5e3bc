// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/report.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softdev::verbs {
namespace {

std::atomic<unsigned long> count{0};

void report_list(const char* format, std::va_list arguments) {
    count.fetch_add(1);
    char text[400];
    std::vsnprintf(text, sizeof text, format, arguments);
    std::fprintf(stderr, "softverbs: violation: %s\n", text);
    const char* const strict = std::getenv("SOFTDEV_STRICT");
    if (strict != nullptr && std::strcmp(strict, "abort") == 0) {
        std::abort();
    }
}

}  // namespace

void report(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report_list(format, arguments);
    va_end(arguments);
}

int refuse(int error, const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report_list(format, arguments);
    va_end(arguments);
    return error;
}

void* refuse_object(int error, const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report_list(format, arguments);
    va_end(arguments);
    errno = error;
    return nullptr;
}

unsigned long violations() {
    return count.load();
}

}  // namespace softdev::verbs
