// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/fields.h"

#include <fmt/format.h>
#ifdef DEFT_HAVE_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

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
        fail(fmt::format("outside {}..{}", low, high));
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
            throw InputError(file_ + ": " + (path_.empty() ? "" : path_ + ".") + item.key() +
                             ": not a known name");
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
            throw InputError(fmt::format("{}: more than {} bytes once inflated", name, limit));
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

std::string read_file(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                               &std::fclose);
    if (!file) {
        throw InputError(path + ": " + std::strerror(errno));
    }
    constexpr std::size_t kLimit = std::size_t{2} << 30;
    std::string bytes;
    std::string block(1 << 18, '\0');
    for (;;) {
        const std::size_t got = std::fread(block.data(), 1, block.size(), file.get());
        bytes.append(block, 0, got);
        if (bytes.size() > kLimit) {
            throw InputError(path + ": larger than 2 GiB");
        }
        if (got < block.size()) {
            break;
        }
    }
    if (std::ferror(file.get()) != 0) {
        throw InputError(path + ": " + std::strerror(errno));
    }
    if (bytes.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b') {
        return inflate(path, bytes, kLimit);
    }
    return bytes;
}

namespace {

// Where in a document the parser stopped: the path of the field it was about to read.
class Place : public nlohmann::json_sax<nlohmann::json> {
public:
    bool null() override { return next(); }
    bool boolean(bool) override { return next(); }
    bool number_integer(number_integer_t) override { return next(); }
    bool number_unsigned(number_unsigned_t) override { return next(); }
    bool number_float(number_float_t, const string_t&) override { return next(); }
    bool string(string_t&) override { return next(); }
    bool binary(binary_t&) override { return next(); }
    bool start_object(std::size_t) override { return open(false); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(true); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        levels_.back().name = name.substr(0, 40);
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
        return false;
    }
    std::string path() const {
        std::string path;
        for (const Level& level : levels_) {
            if (level.array) {
                path += fmt::format("[{}]", level.index);
            } else if (!level.name.empty()) {
                path += (path.empty() ? "" : ".") + level.name;
            }
        }
        return levels_.size() <= 16 ? path : "";
    }

private:
    struct Level {
        bool array = false;
        std::size_t index = 0;
        std::string name;
    };
    bool next() {
        if (!levels_.empty()) {
            ++levels_.back().index;
            levels_.back().name.clear();
        }
        return true;
    }
    bool open(bool array) {
        levels_.push_back({array, 0, ""});
        return true;
    }
    bool close() {
        levels_.pop_back();
        return next();
    }

    std::vector<Level> levels_;
};

}  // namespace

nlohmann::json parse_json(const std::string& name, const std::string& text) {
    try {
        return nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
        Place place;
        nlohmann::json::sax_parse(text, &place);
        const std::string path = place.path();
        // Its message begins with a bracketed id; keep what people can use.
        std::string what = error.what();
        const auto end = what.find("] ");
        what = end == std::string::npos ? what : what.substr(end + 2);
        throw InputError(name + ": " + (path.empty() ? "" : path + ": ") + what.substr(0, 200));
    }
}

}  // namespace deft::tools
