// SPDX-License-Identifier: Apache-2.0
// Reading input files: every error names the file and the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "tools/json_text.h"

namespace deft::tools {

// "links.toml: links[1].rate_gbps: not a number".
class InputError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// One value of a parsed file and the path to it. Cheap to copy; the document must outlive it.
class Field {
public:
    Field(std::string file, const nlohmann::json& document);

    bool has(const char* name) const;
    Field operator[](const char* name) const;  // error if missing
    Field operator[](std::size_t index) const;
    std::size_t size() const;  // of an array; error for anything else
    std::string text() const;
    double number(double low, double high) const;
    std::uint64_t whole(std::uint64_t low, std::uint64_t high) const;
    bool boolean() const;
    bool is_object() const;
    bool is_null() const;
    bool is_number() const;
    // The value of a member that may be missing or null.
    double number_or(const char* name, double otherwise, double low, double high) const;
    std::string text_or(const char* name, const std::string& otherwise) const;
    // Error if a member is none of these: a typo must not be read as a default.
    void only(std::initializer_list<const char*> names) const;

    [[noreturn]] void fail(const std::string& what) const;

private:
    Field(std::string file, std::string path, const nlohmann::json& value)
        : file_(std::move(file)), path_(std::move(path)), value_(&value) {}

    std::string file_;
    std::string path_;
    const nlohmann::json* value_;
};

// Most bytes of a trace, and of any other file, inflated.
inline constexpr std::size_t kMostTraceBytes = std::size_t{2} << 30;
inline constexpr std::size_t kMostFileBytes = std::size_t{64} << 20;

// A whole file or pipe, inflated where it is gzip. Throws InputError.
std::string read_file(const std::string& path, std::size_t limit);

// gzip in memory, at most `limit` bytes out.
std::string inflate(const std::string& name, const std::string& bytes, std::size_t limit);

// Parses JSON (tools/json_text.h). Throws InputError naming file and field.
nlohmann::json parse_json(const std::string& name, const std::string& text,
                          TraceEventFilter wanted = nullptr);

}  // namespace deft::tools
