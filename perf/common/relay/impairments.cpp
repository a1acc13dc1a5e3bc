// SPDX-License-Identifier: Apache-2.0
#include "perf/common/relay/impairments.h"

#include <cmath>
#include <cstdlib>

namespace relay {
namespace {

constexpr double kMillisecond = 1e6;

bool number(const std::string& word, double least, double most, double& value) {
    char* end = nullptr;
    value = std::strtod(word.c_str(), &end);
    return end != word.c_str() && *end == '\0' && value >= least && value <= most;
}

struct Share {
    const char* name;
    double Impairments::*member;
};
constexpr Share kShares[] = {
    {"loss", &Impairments::loss},
    {"ackloss", &Impairments::acknowledgement_loss},
    {"duplicate", &Impairments::duplicate},
    {"reorder", &Impairments::reorder},
    {"biterrors", &Impairments::bit_errors},
    {"silenterrors", &Impairments::silent_bit_errors},
    {"resets", &Impairments::resets},
};

std::string apply_share(Impairments& impairments, const Share& share,
                        const std::vector<std::string>& words) {
    const bool reorder = share.member == &Impairments::reorder;
    double value = 0;
    double by = 0;
    if (words.size() != (reorder ? 3 : 2) || !number(words[1], 0, 1, value) ||
        (reorder && !number(words[2], 0, 10000, by))) {
        return words[0] + ": a share from 0 to 1 is needed" +
               (reorder ? ", and milliseconds to hold packets back" : "");
    }
    impairments.*share.member = value;
    if (reorder) {
        impairments.reorder_by = static_cast<Nanoseconds>(by * kMillisecond);
    }
    return "";
}

}  // namespace

std::string impair(Impairments& impairments, const std::vector<std::string>& words) {
    if (words.empty()) {
        return "no impairment is named";
    }
    const std::string& what = words[0];
    for (const Share& share : kShares) {
        if (what == share.name) {
            return apply_share(impairments, share, words);
        }
    }
    if (what == "none" && words.size() == 1) {
        Impairments healthy;
        healthy.bit_per_s = impairments.bit_per_s;
        healthy.queue = impairments.queue;
        impairments = healthy;
        return "";
    }
    if (what == "blackhole" && words.size() == 2 && (words[1] == "on" || words[1] == "off")) {
        impairments.black_hole = words[1] == "on";
        return "";
    }
    if (what == "forget" && words.size() == 2 && (words[1] == "on" || words[1] == "off")) {
        impairments.forget = words[1] == "on";
        return "";
    }
    double value = 0;
    if (words.size() != 2 || !number(words[1], 0, 1e6, value)) {
        return what + ": is no impairment, or lacks its number";
    }
    if (what == "delay") {
        impairments.delay = static_cast<Nanoseconds>(value * kMillisecond);
    } else if (what == "jitter") {
        impairments.jitter = static_cast<Nanoseconds>(value * kMillisecond);
    } else if (what == "hole") {
        impairments.hole = static_cast<std::size_t>(value);
    } else if (what == "rate") {
        impairments.bit_per_s = static_cast<std::uint64_t>(std::llround(value * 1e6));
    } else {
        return what + ": is no impairment";
    }
    return "";
}

}  // namespace relay
