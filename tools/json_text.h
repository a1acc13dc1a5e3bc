// SPDX-License-Identifier: Apache-2.0
// JSON from files nobody vouches for: bounded in depth and number of values, and every error knows
// the place of the field it is about.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace deft::tools {

// what(): what is wrong, without file and field.
class JsonTextError : public std::runtime_error {
public:
    enum class Kind {
        Syntax,  // not JSON, or cut off
        Range,   // a number beyond double
        Limit,   // nested too deeply, too many values
        Twice,   // an object names a field twice: which one was meant?
    };
    JsonTextError(Kind which, std::string place, std::size_t offset, const std::string& what)
        : std::runtime_error(what), kind(which), path(std::move(place)), byte(offset) {}

    Kind kind;
    std::string path;  // "links[1].rate"; empty: the document
    std::size_t byte;  // Syntax, Range: counted from 1, where the reader stopped
};

// Whether an element of a document's "traceEvents" is wanted; others become null, so that indices
// stay and a profiler's gigabytes do not.
using TraceEventFilter = bool (*)(const nlohmann::json& event);

// Fields given twice are refused, but for documents with "traceEvents": profilers write them.
// Throws JsonTextError.
nlohmann::json parse_json_text(const std::string& text, TraceEventFilter wanted = nullptr);

}  // namespace deft::tools
