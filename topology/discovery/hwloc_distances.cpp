// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/hwloc_distances.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include "topology/discovery/machine.h"
#include "topology/discovery/xml.h"

namespace deft::discovery {
namespace {

constexpr std::size_t kMostObjects = 2048;
constexpr std::uint64_t kMostMbytes = 10'000'000;  // 10 TB/s

// The blank-separated words of all children with this name.
std::vector<std::string_view> words(const XmlElement& matrix, std::string_view name) {
    constexpr std::string_view kBlank = " \t\r\n";
    std::vector<std::string_view> all;
    for (const XmlElement& child : matrix.children) {
        std::string_view text = child.text;
        while (child.name == name && text.find_first_not_of(kBlank) != text.npos) {
            text.remove_prefix(text.find_first_not_of(kBlank));
            all.push_back(text.substr(0, text.find_first_of(kBlank)));
            text.remove_prefix(all.back().size());
        }
    }
    return all;
}

bool number(std::string_view text, std::uint64_t& value) {
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

}  // namespace

bool read_nvlink_matrix(const XmlElement& topology,
                        const std::unordered_map<std::string, NvLinkMatrix::Object>& objects,
                        Machine& machine, std::string& problem) {
    for (const XmlElement& element : topology.children) {
        if (!element.name.starts_with("distances") || element["name"] != "NVLinkBandwidth") {
            continue;
        }
        const auto fail = [&](const std::string& what) {
            problem = fmt::format("line {}: NVLinkBandwidth {}; write the file anew with lstopo",
                                  element.line, what);
            return false;
        };
        const std::vector<std::string_view> indexes = words(element, "indexes");
        const std::vector<std::string_view> values = words(element, "u64values");
        const std::size_t n = indexes.size();
        std::uint64_t told = 0;
        if (!number(element["nbobjs"], told) || told != n) {
            return fail(fmt::format("names {} objects, nbobjs is \"{}\"", n, element["nbobjs"]));
        }
        if (n > kMostObjects) {
            return fail(fmt::format("has {} objects, more than {}", n, kMostObjects));
        }
        if (values.size() != n * n) {
            return fail(
                fmt::format("has {} values where {} objects need {}", values.size(), n, n * n));
        }
        NvLinkMatrix matrix;
        for (const std::string_view index : indexes) {
            // "802", or "OSDev:802" where the objects are of several types.
            const auto found = objects.find(std::string(index.substr(index.rfind(':') + 1)));
            matrix.objects.push_back(
                found != objects.end() ? found->second : NvLinkMatrix::Object{NvLinkEnd::Cpu, ""});
        }
        for (const std::string_view text : values) {
            std::uint64_t value = 0;
            if (!number(text, value) || value > kMostMbytes) {
                return fail(fmt::format("has the value {}, which is no rate in MB/s", text));
            }
            matrix.mbytes.push_back(value);
        }
        add_nvlinks(matrix, machine);
        return true;
    }
    return true;
}

}  // namespace deft::discovery
