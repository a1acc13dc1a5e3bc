// SPDX-License-Identifier: Apache-2.0
#include "tools/text_output.h"

#include <fmt/format.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/utf8.h"

namespace deft::tools {
namespace {

// Writes everything; returns 0 or errno.
int write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
}

}  // namespace

int print(std::string_view text) {
    // Only here, where the command does not go on to execute another one: a disposition would be
    // inherited.
    ::signal(SIGPIPE, SIG_IGN);
    const int error = write_all(STDOUT_FILENO, text);
    if (error == 0 || error == EPIPE) {
        return kSuccess;
    }
    complain(fmt::format("cannot write to standard output: {}", std::strerror(error)));
    return kProblem;
}

void complain(std::string_view text) {
    write_all(STDERR_FILENO, "deft: " + printable(text) + "\n");
}

std::string printable(std::string_view text) {
    std::string shown;
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        const auto byte = static_cast<unsigned char>(text.front());
        if (length == 0 || byte < 0x20 || byte == 0x7F) {
            shown += fmt::format("\\x{:02x}", byte);
            text.remove_prefix(1);
        } else {
            shown += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return shown;
}

std::string ranges(const std::vector<std::int64_t>& sorted) {
    std::string text;
    for (std::size_t i = 0; i < sorted.size();) {
        std::size_t last = i;
        while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
            ++last;
        }
        text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
        text += last > i ? fmt::format("-{}", sorted[last]) : "";
        i = last + 1;
    }
    return text;
}

std::string shell_quoted(std::string_view text) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%^";
    if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) {
        return std::string(text);
    }
    std::string quoted = "'";
    for (const char c : text) {
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return quoted + "'";
}

}  // namespace deft::tools
