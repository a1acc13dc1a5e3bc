// SPDX-License-Identifier: Apache-2.0
#include "tools/text_output.h"

#include <fmt/format.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace deft::tools {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text` (RFC 3629), 0 if there is none.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
    const unsigned lead = byte(0);
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF && follows(1)) {
        // U+0080..U+009F are control characters as well.
        return lead == 0xC2 && byte(1) < 0xA0 ? 0 : 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF && follows(1) && follows(2)) {
        const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
        const bool surrogate = lead == 0xED && byte(1) > 0x9F;
        return overlong || surrogate ? 0 : 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4 && follows(1) && follows(2) && follows(3)) {
        const bool overlong = lead == 0xF0 && byte(1) < 0x90;
        const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
        return overlong || beyond ? 0 : 4;
    }
    return 0;
}

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
