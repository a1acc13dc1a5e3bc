// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <cmath>
#include <cstdio>

#include "base/utf8.h"

namespace deft {

void JsonWriter::separate() {
    if (after_key_) {
        after_key_ = false;
        return;
    }
    if (depth_ == 0) {
        return;
    }
    if (!first_) {
        text_ += ',';
    }
    first_ = false;
    new_line();
}

void JsonWriter::new_line() {
    if (lines_) {
        text_ += '\n';
        text_.append(2 * static_cast<std::size_t>(depth_), ' ');
    }
}

JsonWriter& JsonWriter::literal(std::string_view text) {
    separate();
    text_ += text;
    return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
    separate();
    text_ += bracket;
    ++depth_;
    first_ = true;
    return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
    --depth_;
    if (!first_) {
        new_line();
    }
    text_ += bracket;
    first_ = false;
    return *this;
}

// Readers refuse a document with bytes that are no UTF-8, as of a command line that was cut or is
// written in Latin-1.
void JsonWriter::quote(std::string_view text) {
    constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
    text_ += '"';
    while (!text.empty()) {
        const char c = text.front();
        const auto byte = static_cast<unsigned char>(c);
        const std::size_t length = utf8_length(text);
        if (c == '"' || c == '\\') {
            text_ += '\\';
            text_ += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            char escape[8];
            std::snprintf(escape, sizeof(escape), "\\u%04x", byte);
            text_ += escape;
        } else {
            text_ += length == 0 ? kReplacement : text.substr(0, length);
        }
        text.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
}

JsonWriter& JsonWriter::key(std::string_view name) {
    separate();
    quote(name);
    text_ += lines_ ? ": " : ":";
    after_key_ = true;
    return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
    separate();
    quote(text);
    return *this;
}

JsonWriter& JsonWriter::value(bool flag) {
    return literal(flag ? "true" : "false");
}

JsonWriter& JsonWriter::value(std::int64_t number) {
    return literal(std::to_string(number));
}

JsonWriter& JsonWriter::value(std::uint64_t number) {
    return literal(std::to_string(number));
}

JsonWriter& JsonWriter::value(double number) {
    if (!std::isfinite(number)) {
        return null();
    }
    separate();
    text_ += decimal(number);
    return *this;
}

// The job may have set a locale with a decimal comma.
std::string decimal(double number) {
    char digits[40];
    std::snprintf(digits, sizeof(digits), "%.9g", number);
    for (char* c = digits; *c != '\0'; ++c) {
        *c = *c == ',' ? '.' : *c;
    }
    return digits;
}

}  // namespace deft
