// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef DEFT_HAVE_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "tools/input_file.h"
#include "tools/json_text.h"

namespace deft::tools {

Field::Field(std::string file, const nlohmann::json& document)
    : file_(std::move(file)), value_(&document) {}

void Field::fail(const std::string& what) const {
    throw InputError(file_ + ": " + (path_.empty() ? "" : path_ + ": ") + what);
}

bool Field::has(const char* name) const {
    return value_->is_object() && value_->contains(name) && !(*value_)[name].is_null();
}

Field Field::operator[](const char* name) const {
    if (!value_->is_object()) {
        fail("not an object");
    }
    const std::string path = path_.empty() ? name : path_ + "." + name;
    const auto found = value_->find(name);
    if (found == value_->end()) {
        throw InputError(file_ + ": " + path + ": missing");
    }
    return {file_, path, *found};
}

Field Field::operator[](std::size_t index) const {
    const std::string path = fmt::format("{}[{}]", path_, index);
    if (index >= size()) {
        throw InputError(file_ + ": " + path + ": missing");
    }
    return {file_, path, (*value_)[index]};
}

std::size_t Field::size() const {
    if (!value_->is_array()) {
        fail("not an array");
    }
    return value_->size();
}

std::string Field::text() const {
    if (!value_->is_string()) {
        fail("not a text");
    }
    return value_->get<std::string>();
}

double Field::number(double low, double high) const {
    if (!value_->is_number()) {
        fail("not a number");
    }
    const double value = value_->get<double>();
    if (!std::isfinite(value) || value < low || value > high) {
        fail(fmt::format("{} is outside {}..{}", value, low, high));
    }
    return value;
}

std::uint64_t Field::whole(std::uint64_t low, std::uint64_t high) const {
    if (!value_->is_number_integer() && !value_->is_number_unsigned()) {
        fail("not a whole number");
    }
    const bool negative = value_->is_number_integer() && !value_->is_number_unsigned() &&
                          value_->get<std::int64_t>() < 0;
    const auto value = negative ? 0 : value_->get<std::uint64_t>();
    if (negative || value < low || value > high) {
        fail(fmt::format("{} is outside {}..{}", value_->dump(), low, high));
    }
    return value;
}

bool Field::boolean() const {
    if (!value_->is_boolean()) {
        fail("neither true nor false");
    }
    return value_->get<bool>();
}

bool Field::is_object() const {
    return value_->is_object();
}
bool Field::is_null() const {
    return value_->is_null();
}
bool Field::is_number() const {
    return value_->is_number();
}

double Field::number_or(const char* name, double otherwise, double low, double high) const {
    return has(name) ? (*this)[name].number(low, high) : otherwise;
}

std::string Field::text_or(const char* name, const std::string& otherwise) const {
    return has(name) ? (*this)[name].text() : otherwise;
}

void Field::only(std::initializer_list<const char*> names) const {
    if (!value_->is_object()) {
        fail("not an object");
    }
    for (const auto& item : value_->items()) {
        const auto same = [&](const char* name) { return item.key() == name; };
        if (std::none_of(names.begin(), names.end(), same)) {
            const std::vector<std::string_view> known(names.begin(), names.end());
            const std::string guess = did_you_mean(item.key(), known);
            throw InputError(fmt::format(
                "{}: {}{}: not a known name{}", file_, path_.empty() ? "" : path_ + ".", item.key(),
                guess.empty() ? fmt::format("; known: {}", fmt::join(known, ", ")) : guess));
        }
    }
}

std::string inflate(const std::string& name, const std::string& bytes, std::size_t limit) {
#ifdef DEFT_HAVE_ZLIB
    z_stream stream{};
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) {
        throw InputError(name + ": zlib does not start");
    }
    const std::unique_ptr<z_stream, void (*)(z_stream*)> guard(&stream,
                                                               [](z_stream* s) { inflateEnd(s); });
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    std::string out;
    std::string block(1 << 18, '\0');
    for (;;) {
        stream.next_out = reinterpret_cast<Bytef*>(block.data());
        stream.avail_out = static_cast<uInt>(block.size());
        const int status = ::inflate(&stream, Z_NO_FLUSH);
        out.append(block, 0, block.size() - stream.avail_out);
        if (out.size() > limit) {
            throw InputError(fmt::format("{}: more than {} MiB once inflated", name, limit >> 20));
        }
        if (status == Z_STREAM_END) {
            return out;
        }
        if (status != Z_OK || (stream.avail_in == 0 && stream.avail_out != 0)) {
            throw InputError(name + ": broken or cut gzip data");
        }
    }
#else
    (void)bytes;
    (void)limit;
    throw InputError(name + ": is gzip, and this command was built without zlib; gunzip it first");
#endif
}

std::string read_file(const std::string& path, std::size_t limit) {
    std::string bytes;
    std::string problem;
    if (!read_input(path, limit, bytes, problem)) {
        throw InputError(path + ": " + problem);
    }
    if (bytes.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b') {
        return inflate(path, bytes, limit);
    }
    return bytes;
}

nlohmann::json parse_json(const std::string& name, const std::string& text,
                          TraceEventFilter wanted) {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
        throw InputError(name + ": empty");
    }
    try {
        return parse_json_text(text, wanted);
    } catch (const JsonTextError& error) {
        throw InputError(name + ": " + (error.path.empty() ? "" : error.path + ": ") +
                         error.what());
    }
}

}  // namespace deft::tools
