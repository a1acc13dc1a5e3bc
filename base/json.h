// SPDX-License-Identifier: Apache-2.0
// A strict JSON reader, and values to write, for plans that travel between ranks and files, and for
// what a probe has measured. Standard library and base/ only: this code is part of the preloaded
// library, where no other may be.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deft {

class JsonWriter;

// What is wrong and where: "transfers[3].link: not a number".
class JsonError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Json {
public:
    enum class Kind : std::uint8_t { Null, Bool, Number, Text, Array, Object };

    Json() = default;
    static Json boolean(bool value);
    static Json number(double value);
    static Json number(std::uint64_t value);
    static Json number(std::int64_t value);
    static Json text(std::string value);
    static Json array() { return Json(Kind::Array); }
    static Json object() { return Json(Kind::Object); }

    // RFC 8259, nothing more; at most 64 levels deep, at most one value per name.
    static Json parse(std::string_view input);
    std::string dump() const;

    Kind kind() const { return kind_; }
    void append(Json value) { items_.push_back(std::move(value)); }
    void set(std::string name, Json value);

    // Readers name the field in their errors: `at` is the path of this value.
    bool has(std::string_view name) const;
    const Json& get(std::string_view name, const std::string& at) const;
    double as_double(const std::string& at) const;
    std::uint64_t as_unsigned(const std::string& at, std::uint64_t most = ~std::uint64_t{0}) const;
    std::int64_t as_signed(const std::string& at) const;
    bool as_bool(const std::string& at) const;
    const std::string& as_text(const std::string& at) const;
    const std::vector<Json>& as_array(const std::string& at) const;

private:
    explicit Json(Kind kind) : kind_(kind) {}
    void write(JsonWriter& out) const;

    Kind kind_ = Kind::Null;
    bool bool_ = false;
    std::string text_;  // of a number: as written, so that 64-bit integers survive
    std::vector<Json> items_;
    std::vector<std::string> names_;  // of an object, beside items_

    friend class JsonParser;
};

}  // namespace deft
