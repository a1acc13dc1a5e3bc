// SPDX-License-Identifier: Apache-2.0
// parse_toml(): toml++ in a file of its own, as its header takes long to compile.
#include <nlohmann/json.hpp>

#include "tools/planner/fields.h"
#include "tools/planner/links_reader.h"
#ifdef DEFT_HAVE_TOML
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

// toml++ 3.3 asserts what a file may say ("[[*"), and assumes it under NDEBUG: checked here
// instead.
#undef NDEBUG
#define TOML_ASSERT(expr) \
    static_cast<void>((expr) ? 0 : throw std::invalid_argument("this is not TOML"))
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wterminate"  // its noexcept accessors assert as well; not for files
#endif
#include <toml++/toml.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

namespace deft::tools {

#ifdef DEFT_HAVE_TOML
namespace {

nlohmann::json from_toml(const toml::node& node, const std::string& path, TomlLines* lines) {
    if (lines != nullptr) {
        (*lines)[path] = node.source().begin.line;
    }
    if (const auto* const table = node.as_table()) {
        nlohmann::json object = nlohmann::json::object();
        for (const auto& [key, item] : *table) {
            const std::string name(key.str());
            object[name] = from_toml(item, path.empty() ? name : path + "." + name, lines);
        }
        return object;
    }
    if (const auto* const array = node.as_array()) {
        nlohmann::json list = nlohmann::json::array();
        for (const auto& item : *array) {
            list.push_back(from_toml(item, fmt::format("{}[{}]", path, list.size()), lines));
        }
        return list;
    }
    if (const auto* const text = node.as_string()) {
        return text->get();
    }
    if (const auto* const whole = node.as_integer()) {
        return whole->get();
    }
    if (const auto* const number = node.as_floating_point()) {
        return number->get();
    }
    if (const auto* const flag = node.as_boolean()) {
        return flag->get();
    }
    return nlohmann::json::binary({});  // a date: no field of ours, the reader of the field says so
}

}  // namespace

nlohmann::json parse_toml(const std::string& name, const std::string& text, TomlLines* lines) {
    // toml++ 3.3 takes some code points outside strings for what cannot happen.
    const auto beyond = std::find_if(text.begin(), text.end(),
                                     [](char c) { return static_cast<unsigned char>(c) > 0x7f; });
    if (beyond != text.end()) {
        throw InputError(fmt::format("{}: line {}: only ASCII is understood in TOML; write JSON",
                                     name, 1 + std::count(text.begin(), beyond, '\n')));
    }
    try {
        return from_toml(toml::parse(text, name), "", lines);
    } catch (const toml::parse_error& error) {
        throw InputError(fmt::format("{}: line {}: {}", name, error.source().begin.line,
                                     std::string_view(error.description())));
    } catch (const std::invalid_argument& error) {
        throw InputError(name + ": " + error.what());
    }
}
#else
nlohmann::json parse_toml(const std::string& name, const std::string&, TomlLines*) {
    throw InputError(name + ": this command was built without a TOML reader; write JSON");
}
#endif

}  // namespace deft::tools
