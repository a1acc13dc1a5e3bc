// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/validity.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "planner/adviser.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

// A message is no other size for a header or a rounding.
constexpr double kSame = 1.01;

std::string size_text(double bytes) {
    const struct {
        double unit;
        const char* name;
    } units[] = {{0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}};
    for (const auto& [unit, name] : units) {
        if (bytes >= unit) {
            return fmt::format("{:.3g} {}", bytes / unit, name);
        }
    }
    return fmt::format("{:.0f} bytes", bytes);
}

std::string range_text(double least, double most) {
    return most <= least * kSame ? size_text(least) : size_text(least) + " to " + size_text(most);
}

void add(MessageSizes& sizes, double bytes) {
    sizes.least = std::min(sizes.least, bytes);
    sizes.most = std::max(sizes.most, bytes);
}

}  // namespace

std::vector<MessageSizes> messages_of(const std::vector<const planner::Plan*>& plans,
                                      const planner::Fabric& fabric) {
    std::vector<MessageSizes> sizes(fabric.links.size());
    for (const planner::Plan* const plan : plans) {
        std::map<std::pair<std::uint32_t, std::uint32_t>, double> messages;
        for (const planner::Transfer& t : plan->transfers) {
            messages[{t.link, t.message}] += static_cast<double>(t.bytes());
        }
        for (const auto& [at, bytes] : messages) {
            add(sizes[at.first], bytes);
        }
    }
    return sizes;
}

std::vector<MessageSizes> messages_of(const planner::Profile& profile,
                                      const planner::Fabric& fabric) {
    MessageSizes sizes;
    for (const planner::Bucket& bucket : profile.buckets) {
        add(sizes, static_cast<double>(bucket.bytes));
    }
    return std::vector<MessageSizes>(fabric.links.size(), sizes);
}

std::string beyond_of(const planner::Link& link, const MessageSizes& sizes) {
    std::string text = link.beyond;
    const bool told = link.most_bytes > 0 && sizes.most > 0;
    if (told && (sizes.least * kSame < link.least_bytes || sizes.most > link.most_bytes * kSame)) {
        text += fmt::format("{}measured with messages of {}, used for {}", text.empty() ? "" : "; ",
                            range_text(link.least_bytes, link.most_bytes),
                            range_text(sizes.least, sizes.most));
    }
    return text;
}

std::string beyond_text(const planner::Fabric& fabric, const std::vector<MessageSizes>& messages,
                        const char* indent) {
    std::string text;
    for (std::size_t i = 0; i < fabric.links.size(); ++i) {
        const std::string beyond = beyond_of(fabric.links[i], messages[i]);
        if (!beyond.empty()) {
            text += fmt::format("{}beyond its measurements: {} ({}); its times are extrapolated\n",
                                indent, printable(fabric.links[i].name), beyond);
        }
    }
    return text;
}

double coverage_rate(const planner::Profile& profile, const planner::Fabric& fabric) {
    double reference = 0;
    for (const planner::Bucket& bucket : profile.buckets) {
        reference += fabric.links[0].seconds(static_cast<double>(bucket.bytes));
    }
    return profile.compute() > 0 ? reference / profile.compute() : 0;
}

std::string coverage_text(const planner::Profile& profile, const planner::Fabric& fabric) {
    const std::string question = planner::coverage_question(coverage_rate(profile, fabric));
    return question.empty() ? "" : "note: " + question + "\n";
}

}  // namespace deft::tools
