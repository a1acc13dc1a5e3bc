// SPDX-License-Identifier: Apache-2.0
// Reads a rank's record (docs/observe.md) field by field.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/observe_file.h"

namespace deft::tools {

// One JSON object of the file with its place in it, for messages that name the field. What is wrong
// is thrown as a std::runtime_error with one line.
class RecordNode {
public:
    static constexpr double kMost = 1e15;  // milliseconds, rates: beyond, the file is broken

    [[noreturn]] static void fail(const std::string& path, const std::string& what) {
        throw std::runtime_error(path + ": " + what);
    }

    RecordNode(const std::string& file, std::string place, const nlohmann::json& json)
        : file_(file), place_(std::move(place)), json_(json) {
        if (!json.is_object()) {
            wrong(place_.empty() ? "the document" : place_, "an object", json);
        }
    }

    std::string text(const char* key) const {
        const Json& value = required(key);
        if (!value.is_string()) {
            wrong(name(key), "a text", value);
        }
        return value.get<std::string>();
    }
    std::string text_or_empty(const char* key) const { return absent(key) ? "" : text(key); }

    bool has(const char* key) const { return !absent(key); }
    bool flag_or(const char* key, bool otherwise) const {
        return absent(key) ? otherwise : flag(key);
    }
    bool flag(const char* key) const {
        const Json& value = required(key);
        if (!value.is_boolean()) {
            wrong(name(key), "true or false", value);
        }
        return value.get<bool>();
    }

    std::int64_t integer(const char* key) const { return integer_of(name(key), required(key)); }
    std::int64_t integer_or_zero(const char* key) const { return absent(key) ? 0 : integer(key); }

    // Of any size: the loss of a training that diverges.
    std::optional<double> any_number(const char* key) const {
        if (absent(key)) {
            return std::nullopt;
        }
        const Json& value = json_.at(key);
        if (!value.is_number()) {
            wrong(name(key), "a number", value);
        }
        return value.get<double>();
    }

    std::optional<double> number(const char* key, double least = 0) const {
        if (absent(key)) {
            return std::nullopt;
        }
        const Json& value = json_.at(key);
        if (!value.is_number()) {
            wrong(name(key), "a number", value);
        }
        const double found = value.get<double>();
        if (!(found >= least && found <= kMost)) {
            wrong(name(key), least < 0 ? "within 1e15 of 0" : "a number from 0 to 1e15", value);
        }
        return found;
    }

    RecordNode child(const char* key) const { return RecordNode(file_, name(key), required(key)); }

    Quantiles quantiles(const char* key, double least = 0) const {
        Quantiles result;
        if (!absent(key)) {
            const RecordNode node = child(key);
            result.median = node.number("median", least);
            result.p10 = node.number("p10", least);
            result.p90 = node.number("p90", least);
            result.n = node.integer_or_zero("n");
        }
        return result;
    }

    template <typename Function>
    void each(const char* key, Function&& function) const {
        const Json& list = list_of(name(key), required(key));
        for (std::size_t i = 0; i < list.size(); ++i) {
            function(RecordNode(file_, fmt::format("{}[{}]", name(key), i), list[i]));
        }
    }

    // Numbers that are not negative, in a list.
    std::vector<double> numbers(const char* key) const {
        std::vector<double> list;
        for (const Json& value : list_of(name(key), required(key))) {
            if (!value.is_number() || !(value.get<double>() >= 0)) {
                wrong(name(key), "a list of numbers that are not negative", value);
            }
            list.push_back(value.get<double>());
        }
        return list;
    }
    std::vector<std::int64_t> integers(const char* key) const {
        std::vector<std::int64_t> list;
        for (const Json& value : list_of(name(key), required(key))) {
            list.push_back(integer_of(name(key), value));
        }
        return list;
    }
    // Lists of `width` whole numbers, which may be negative, in a list.
    std::vector<std::vector<std::int64_t>> rows(const char* key, std::size_t width) const {
        std::vector<std::vector<std::int64_t>> list;
        for (const Json& row : list_of(name(key), required(key))) {
            std::vector<std::int64_t> numbers;
            for (const Json& value : list_of(name(key), row)) {
                const bool fits = value.is_number_integer() && value.get<double>() <= kMost &&
                                  value.get<double>() >= -kMost;
                if (!fits) {
                    wrong(name(key), "lists of whole numbers within 1e15 of 0", value);
                }
                numbers.push_back(value.get<std::int64_t>());
            }
            if (numbers.size() != width) {
                misfit(key);
            }
            list.push_back(std::move(numbers));
        }
        return list;
    }
    [[noreturn]] void misfit(const char* key) const {
        fail(file_,
             fmt::format("{} does not fit what is around it; was the file edited?", name(key)));
    }

    std::vector<std::pair<std::string, std::int64_t>> counters() const {
        std::vector<std::pair<std::string, std::int64_t>> list;
        for (const auto& [key, value] : json_.items()) {
            list.emplace_back(key, integer_of(name(key), value));
        }
        return list;
    }

private:
    using Json = nlohmann::json;

    const Json& list_of(const std::string& where, const Json& value) const {
        if (!value.is_array()) {
            wrong(where, "a list", value);
        }
        return value;
    }
    bool absent(const char* key) const {
        const auto found = json_.find(key);
        return found == json_.end() || found->is_null();
    }
    const Json& required(const char* key) const {
        const auto found = json_.find(key);
        if (found == json_.end()) {
            fail(file_, fmt::format("{} is missing; was the file edited or cut off?", name(key)));
        }
        return *found;
    }
    std::string name(std::string_view key) const {
        return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
    }
    std::int64_t integer_of(const std::string& where, const Json& value) const {
        const bool whole = value.is_number_integer();
        const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX;
        if (!whole || !fits || value.get<std::int64_t>() < 0) {
            wrong(where, "a whole number that is not negative", value);
        }
        return value.get<std::int64_t>();
    }
    [[noreturn]] void wrong(const std::string& where, const char* expected,
                            const Json& value) const {
        std::string found = value.is_structured()
                                ? value.type_name()
                                : value.dump(-1, ' ', true, Json::error_handler_t::replace);
        found = found.size() > 40 ? found.substr(0, 40) + "..." : found;
        fail(file_, fmt::format("{} is {}, not {}; was the file edited?", where, found, expected));
    }

    const std::string& file_;
    std::string place_;
    const Json& json_;
};

}  // namespace deft::tools
