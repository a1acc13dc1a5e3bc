// SPDX-License-Identifier: Apache-2.0
#include "tools/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace deft::tools {
namespace {

using Json = nlohmann::json;
using Kind = JsonTextError::Kind;

constexpr std::size_t kDeepest = 64;
// Kept values, each at most about 200 bytes: 1.6 GB. A trace counts one for an event not wanted.
constexpr std::size_t kMostValues = std::size_t{8} << 20;

class Builder : public nlohmann::json_sax<Json> {
public:
    explicit Builder(TraceEventFilter wanted) : wanted_(wanted) {}

    bool null() override { return scalar(nullptr); }
    bool boolean(bool value) override { return scalar(value); }
    bool number_integer(number_integer_t value) override { return scalar(value); }
    bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
    bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
    bool string(string_t& value) override { return scalar(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // JSON has none
    bool start_object(std::size_t) override { return open(Json::object()); }
    bool start_array(std::size_t) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        Level& level = levels_.back();
        level.name = std::move(name);
        if (!twice_ && level.value->contains(level.name)) {
            twice_ = path();
        }
        return true;
    }
    bool parse_error(std::size_t byte, const std::string&, const Json::exception& error) override {
        // Its message begins with a bracketed id; what follows is for people.
        std::string what = error.what();
        const auto end = what.find("] ");
        what = (end == std::string::npos ? what : what.substr(end + 2)).substr(0, 200);
        constexpr int kNumberOverflow = 406;
        fail(error.id == kNumberOverflow ? Kind::Range : Kind::Syntax, what, byte);
        return false;
    }

    // After sax_parse(), whatever that said.
    Json take() {
        if (problem_) {
            throw JsonTextError(*problem_);
        }
        if (twice_ && !(root_.is_object() && root_.contains("traceEvents"))) {
            throw JsonTextError(Kind::Twice, *twice_, 0, "given twice");
        }
        return std::move(root_);
    }

private:
    struct Level {
        Json* value;
        std::size_t values_before;  // counted when it was opened
        std::size_t index = 0;      // of the element being read
        std::string name{};         // of the member being read
    };

    std::string path() const {
        std::string path;
        for (const Level& level : levels_) {
            if (level.value->is_array()) {
                path += fmt::format("[{}]", level.index);
            } else if (!level.name.empty()) {
                path += (path.empty() ? "" : ".") + level.name.substr(0, 40);
            }
        }
        return levels_.size() <= 16 ? path : "";
    }

    void fail(Kind kind, const std::string& what, std::size_t byte = 0) {
        problem_.emplace(kind, path(), byte, what);
    }

    Json* put(Json&& value) {
        if (++values_ > kMostValues) {
            fail(Kind::Limit, fmt::format("more than {} values in one file", kMostValues));
            return nullptr;
        }
        if (levels_.empty()) {
            root_ = std::move(value);
            return &root_;
        }
        Level& level = levels_.back();
        if (level.value->is_array()) {
            level.value->push_back(std::move(value));
            return &level.value->back();
        }
        Json& member = (*level.value)[level.name];
        member = std::move(value);
        return &member;
    }

    bool scalar(Json&& value) { return put(std::move(value)) != nullptr && next(); }

    bool open(Json&& value) {
        if (levels_.size() >= kDeepest) {
            fail(Kind::Limit, fmt::format("nested more than {} deep", kDeepest));
            return false;
        }
        const std::size_t before = values_;
        Json* const placed = put(std::move(value));
        if (placed == nullptr) {
            return false;
        }
        levels_.push_back({placed, before});
        return true;
    }

    bool close() {
        const Level done = std::move(levels_.back());
        levels_.pop_back();
        const bool event = wanted_ != nullptr && levels_.size() == 2 &&
                           levels_[0].name == "traceEvents" && levels_[1].value->is_array();
        if (event && !wanted_(*done.value)) {
            *done.value = nullptr;
            values_ = done.values_before + 1;
        }
        return next();
    }

    bool next() {
        if (!levels_.empty()) {
            ++levels_.back().index;
            levels_.back().name.clear();
        }
        return true;
    }

    const TraceEventFilter wanted_;
    Json root_;
    std::vector<Level> levels_;
    std::size_t values_ = 0;
    std::optional<JsonTextError> problem_;
    std::optional<std::string> twice_;
};

}  // namespace

nlohmann::json parse_json_text(const std::string& text, TraceEventFilter wanted) {
    Builder builder(wanted);
    Json::sax_parse(text, &builder);
    return builder.take();
}

}  // namespace deft::tools
