// SPDX-License-Identifier: Apache-2.0
// Writes JSON into a string, with no library behind it: observe reports, plans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deft {

// As "%.9g", with a point in every locale.
std::string decimal(double number);

// Members and elements in call order; the caller keeps begin and end balanced. Numbers that JSON
// has no form for (infinite, not a number) become null.
class JsonWriter {
public:
    enum class Layout : std::uint8_t {
        Lines,   // for people: a member a line, indented
        Compact  // for other ranks and programs
    };
    explicit JsonWriter(Layout layout = Layout::Lines) : lines_(layout == Layout::Lines) {}

    JsonWriter& begin_object() { return open('{'); }
    JsonWriter& end_object() { return close('}'); }
    JsonWriter& begin_array() { return open('['); }
    JsonWriter& end_array() { return close(']'); }
    JsonWriter& key(std::string_view name);

    JsonWriter& value(std::string_view text);
    JsonWriter& value(const char* text) { return value(std::string_view(text)); }
    JsonWriter& value(bool flag);
    JsonWriter& value(std::int64_t number);
    JsonWriter& value(std::uint64_t number);
    JsonWriter& value(int number) { return value(static_cast<std::int64_t>(number)); }
    JsonWriter& value(double number);
    // A number that is written already, such as one that must keep its digits.
    JsonWriter& digits(std::string_view number) { return literal(number); }
    JsonWriter& null() { return literal("null"); }

    template <typename Value>
    JsonWriter& member(std::string_view name, const Value& content) {
        return key(name).value(content);
    }

    const std::string& text() const { return text_; }

private:
    std::string text_;
    bool lines_;
    unsigned depth_ = 0;
    bool first_ = true;       // nothing yet in the innermost object or array
    bool after_key_ = false;  // a value comes next, no comma

    JsonWriter& open(char bracket);
    JsonWriter& close(char bracket);
    void separate();
    void new_line();
    JsonWriter& literal(std::string_view text);
    void quote(std::string_view text);
};

}  // namespace deft
