// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/json_writer.h"

namespace deft {
namespace {

void append_utf8(unsigned code, std::string& out) {
    if (code < 0x80) {
        out += static_cast<char>(code);
    } else if (code < 0x800) {
        out += static_cast<char>(0xc0 | (code >> 6));
        out += static_cast<char>(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        out += static_cast<char>(0xe0 | (code >> 12));
        out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
        out += static_cast<char>(0x80 | (code & 0x3f));
    } else {
        out += static_cast<char>(0xf0 | (code >> 18));
        out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
        out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
        out += static_cast<char>(0x80 | (code & 0x3f));
    }
}

// The digits of a finite number that tell it from its neighbours, the fewest, and its power of ten:
// "15", 2 is 150. Of any locale. Not std::to_chars(): its tables would be 100 KiB of the library.
struct Digits {
    explicit Digits(double value) {
        char text[48];
        for (int count = 15; count <= 17; ++count) {  // each number of 15 has a double of its own
            std::snprintf(text, sizeof text, "%.*e", count - 1, value);
            if (std::strtod(text, nullptr) == value) {
                break;
            }
        }
        const char* const exponent = std::strrchr(text, 'e');
        std::copy_if(static_cast<const char*>(text), exponent, std::back_inserter(digits),
                     [](char c) { return c >= '0' && c <= '9'; });
        digits.resize(std::max<std::size_t>(digits.find_last_not_of('0') + 1, 1));
        power = std::atoi(exponent + 1);
        power_text = exponent;
    }
    std::string digits;
    int power;
    std::string power_text;  // "e+02"
};

// "150", "1.5e+20": the shorter one.
std::string shortest(double value) {
    const Digits number(std::abs(value));
    const std::string& digits = number.digits;
    const int last = static_cast<int>(digits.size()) - 1;
    const auto zeros = [](int count) {
        return std::string(static_cast<std::size_t>(std::max(count, 0)), '0');
    };
    std::string fixed;
    if (number.power < 0) {
        fixed = "0." + zeros(-number.power - 1) + digits;
    } else if (number.power >= last) {
        fixed = digits + zeros(number.power - last);
    } else {
        fixed = digits;
        fixed.insert(static_cast<std::size_t>(number.power) + 1, ".");
    }
    std::string scientific = digits;
    if (last > 0) {
        scientific.insert(1, ".");
    }
    scientific += number.power_text;
    return (std::signbit(value) ? "-" : "") +
           (fixed.size() <= scientific.size() ? fixed : scientific);
}

}  // namespace

class JsonParser {
public:
    explicit JsonParser(std::string_view input) : input_(input) {}

    Json document() {
        Json value = read(0);
        skip_space();
        if (at_ != input_.size()) {
            fail("something follows the value");
        }
        return value;
    }

private:
    [[noreturn]] void fail(const char* what) const {
        const std::string_view before = input_.substr(0, std::min(at_, input_.size()));
        const auto line = 1 + std::count(before.begin(), before.end(), '\n');
        throw JsonError("line " + std::to_string(line) + ": " + what);
    }
    char peek() const { return at_ < input_.size() ? input_[at_] : '\0'; }
    void skip_space() {
        while (at_ < input_.size() && (input_[at_] == ' ' || input_[at_] == '\t' ||
                                       input_[at_] == '\n' || input_[at_] == '\r')) {
            ++at_;
        }
    }
    void expect(std::string_view word) {
        if (input_.substr(at_, word.size()) != word) {
            fail("not a JSON value");
        }
        at_ += word.size();
    }

    Json read(int depth) {
        if (depth > 64) {
            fail("nested too deeply");
        }
        skip_space();
        switch (peek()) {
            case 'n':
                expect("null");
                return {};
            case 't':
                expect("true");
                return Json::boolean(true);
            case 'f':
                expect("false");
                return Json::boolean(false);
            case '"':
                return Json::text(read_text());
            case '[':
                return read_array(depth);
            case '{':
                return read_object(depth);
            default:
                return read_number();
        }
    }

    Json read_array(int depth) {
        Json value = Json::array();
        ++at_;
        skip_space();
        if (peek() == ']') {
            ++at_;
            return value;
        }
        for (;;) {
            value.append(read(depth + 1));
            skip_space();
            if (peek() == ']') {
                ++at_;
                return value;
            }
            if (peek() != ',') {
                fail("expected ',' or ']'");
            }
            ++at_;
        }
    }

    Json read_object(int depth) {
        Json value = Json::object();
        ++at_;
        skip_space();
        if (peek() == '}') {
            ++at_;
            return value;
        }
        for (;;) {
            skip_space();
            if (peek() != '"') {
                fail("expected a name");
            }
            std::string name = read_text();
            skip_space();
            if (peek() != ':') {
                fail("expected ':'");
            }
            ++at_;
            if (value.names_.size() >= 4096) {
                fail("more than 4096 names in one object");  // the search below is linear
            }
            if (value.has(name)) {
                fail("a name is given twice");
            }
            Json item = read(depth + 1);
            value.set(std::move(name), std::move(item));
            skip_space();
            if (peek() == '}') {
                ++at_;
                return value;
            }
            if (peek() != ',') {
                fail("expected ',' or '}'");
            }
            ++at_;
        }
    }

    unsigned read_hex() {
        unsigned code = 0;
        for (int i = 0; i < 4; ++i) {
            const char c = peek();
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) {
                fail("bad \\u escape");
            }
            code = code * 16 + static_cast<unsigned>(digit);
            ++at_;
        }
        return code;
    }

    std::string read_text() {
        std::string text;
        for (++at_;;) {
            if (at_ >= input_.size()) {
                fail("text without end");
            }
            const char c = input_[at_++];
            if (c == '"') {
                return text;
            }
            if (static_cast<unsigned char>(c) < 0x20) {
                fail("control character in text");
            }
            if (c != '\\') {
                text += c;
                continue;
            }
            const char escaped = peek();
            ++at_;
            static constexpr std::string_view kFrom = "\"\\/bfnrt";
            static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
            if (escaped == 'u') {
                unsigned code = read_hex();
                if (code >= 0xd800 && code < 0xdc00) {
                    if (input_.substr(at_, 2) != "\\u") {
                        fail("lone surrogate");
                    }
                    at_ += 2;
                    const unsigned low = read_hex();
                    if (low < 0xdc00 || low > 0xdfff) {
                        fail("lone surrogate");
                    }
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                } else if (code >= 0xdc00 && code < 0xe000) {
                    fail("lone surrogate");
                }
                append_utf8(code, text);
            } else if (const auto i = kFrom.find(escaped); i != std::string_view::npos) {
                text += kTo[i];
            } else {
                fail("bad escape");
            }
        }
    }

    Json read_number() {
        const std::size_t from = at_;
        const auto digits = [&] {
            const std::size_t first = at_;
            while (peek() >= '0' && peek() <= '9') {
                ++at_;
            }
            if (at_ == first) {
                fail("not a JSON value");
            }
        };
        if (peek() == '-') {
            ++at_;
        }
        if (peek() == '0') {
            ++at_;
        } else {
            digits();
        }
        if (peek() == '.') {
            ++at_;
            digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '+' || peek() == '-') {
                ++at_;
            }
            digits();
        }
        Json value(Json::Kind::Number);
        value.text_ = std::string(input_.substr(from, at_ - from));
        return value;
    }

    std::string_view input_;
    std::size_t at_ = 0;
};

Json Json::parse(std::string_view input) {
    return JsonParser(input).document();
}

Json Json::boolean(bool value) {
    Json json(Kind::Bool);
    json.bool_ = value;
    return json;
}

Json Json::number(double value) {
    if (!std::isfinite(value)) {
        return {};
    }
    Json json(Kind::Number);
    json.text_ = shortest(value);
    return json;
}

Json Json::number(std::uint64_t value) {
    Json json(Kind::Number);
    json.text_ = std::to_string(value);
    return json;
}

Json Json::number(std::int64_t value) {
    Json json(Kind::Number);
    json.text_ = std::to_string(value);
    return json;
}

Json Json::text(std::string value) {
    Json json(Kind::Text);
    json.text_ = std::move(value);
    return json;
}

void Json::set(std::string name, Json value) {
    names_.push_back(std::move(name));
    items_.push_back(std::move(value));
}

bool Json::has(std::string_view name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
}

const Json& Json::get(std::string_view name, const std::string& at) const {
    if (kind_ != Kind::Object) {
        throw JsonError(at + ": not an object");
    }
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
        throw JsonError((at.empty() ? "" : at + ".") + std::string(name) + ": missing");
    }
    return items_[static_cast<std::size_t>(found - names_.begin())];
}

double Json::as_double(const std::string& at) const {
    double value = 0;
    if (kind_ != Kind::Number) {
        throw JsonError(at + ": not a number");
    }
    const auto end = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (end.ec != std::errc() || !std::isfinite(value)) {
        throw JsonError(at + ": number out of range");
    }
    return value;
}

std::uint64_t Json::as_unsigned(const std::string& at, std::uint64_t most) const {
    std::uint64_t value = 0;
    const char* last = text_.data() + text_.size();
    const auto end = std::from_chars(text_.data(), last, value);
    if (kind_ != Kind::Number || end.ec != std::errc() || end.ptr != last || value > most) {
        throw JsonError(at + ": not a whole number from 0 to " + std::to_string(most));
    }
    return value;
}

std::int64_t Json::as_signed(const std::string& at) const {
    std::int64_t value = 0;
    const char* last = text_.data() + text_.size();
    const auto end = std::from_chars(text_.data(), last, value);
    if (kind_ != Kind::Number || end.ec != std::errc() || end.ptr != last) {
        throw JsonError(at + ": not a whole number");
    }
    return value;
}

bool Json::as_bool(const std::string& at) const {
    if (kind_ != Kind::Bool) {
        throw JsonError(at + ": neither true nor false");
    }
    return bool_;
}

const std::string& Json::as_text(const std::string& at) const {
    if (kind_ != Kind::Text) {
        throw JsonError(at + ": not a text");
    }
    return text_;
}

const std::vector<Json>& Json::as_array(const std::string& at) const {
    if (kind_ != Kind::Array) {
        throw JsonError(at + ": not an array");
    }
    return items_;
}

void Json::write(JsonWriter& out) const {
    switch (kind_) {
        case Kind::Null:
            out.null();
            break;
        case Kind::Bool:
            out.value(bool_);
            break;
        case Kind::Number:
            out.digits(text_);
            break;
        case Kind::Text:
            out.value(text_);
            break;
        case Kind::Array:
            out.begin_array();
            for (const Json& item : items_) {
                item.write(out);
            }
            out.end_array();
            break;
        case Kind::Object:
            out.begin_object();
            for (std::size_t i = 0; i < items_.size(); ++i) {
                out.key(names_[i]);
                items_[i].write(out);
            }
            out.end_object();
            break;
    }
}

std::string Json::dump() const {
    JsonWriter out(JsonWriter::Layout::Compact);
    write(out);
    return out.text();
}

}  // namespace deft
