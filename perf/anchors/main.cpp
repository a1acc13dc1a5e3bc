// SPDX-License-Identifier: Apache-2.0
// anchors            the stored constants' residuals as a table
// anchors --json     the same for programs
// anchors --fit      fits anew and prints constants.h
// anchors --refine   the same, from the stored constants of 10GbE on (refine.cpp)
// Exit code 1: a row is beyond its bar, or two methods are in the wrong order.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "perf/anchors/constants.h"
#include "perf/anchors/fit.h"

namespace deft::anchors {
namespace {

void print_fit(bool refine) {
    std::printf(
        "// SPDX-License-Identifier: Apache-2.0\n"
        "// Written by `anchors --fit` and, for 10GbE, `anchors --refine`: one set per link and "
        "method.\n"
        "// {bytes per second, seconds per ring step, per message, contention, per tensor}\n"
        "#pragma once\n\n#include \"perf/anchors/system_model.h\"\n\nnamespace deft::anchors {\n\n"
        "inline constexpr std::array<std::array<Constants, kMethods>, kLinks> kConstants = {{\n");
    for (int l = 0; l < kLinks; ++l) {
        std::printf("    {{\n        // %s\n", kLinkNames[l]);
        const auto fitted = !refine  ? fit_link(l)
                            : l == 0 ? refine_link(l)
                                     : kConstants[static_cast<std::size_t>(l)];
        for (int k = 0; k < kMethods; ++k) {
            const Constants& c = fitted[static_cast<std::size_t>(k)];
            std::printf("        {%.5g, %.5g, %.5g, %.5g, %.5g},  // %s\n", c.rate, c.hop,
                        c.per_message, c.contention, c.framework, kMethodNames[k]);
        }
        std::printf("    }},\n");
    }
    std::printf("}};\n\n}  // namespace deft::anchors\n");
}

// False: a bar is missed.
bool print_table(bool json) {
    int beyond = 0;
    std::printf(json ? "{\"format\":\"deft-anchors\",\"version\":1,\"rows\":["
                     : "| link | model | method | GPUs | measured ms | simulated ms | error |\n"
                       "|---|---|---|---|---|---|---|\n");
    double worst[kLinks][kMethods] = {};
    const char* comma = "";
    for (int l = 0; l < kLinks; ++l) {
        const Residuals of = residuals(l, kConstants[static_cast<std::size_t>(l)]);
        for (int m = 0; m < kModels; ++m) {
            for (int k = 0; k < kMethods; ++k) {
                for (int s = 0; s < kSizes; ++s) {
                    const double error = of.error(l, m, k, s);
                    worst[l][k] = std::max(worst[l][k], std::abs(error));
                    beyond += std::abs(error) > bar(l, k) ? 1 : 0;
                    if (json) {
                        std::printf(
                            "%s\n{\"link\":\"%s\",\"model\":\"%s\",\"method\":\"%s\","
                            "\"gpus\":%d,\"measured_ms\":%.3f,\"simulated_ms\":%.3f,"
                            "\"error\":%.5f}",
                            comma, kLinkNames[l], kModelNames[m], kMethodNames[k], kGpus[s],
                            measured(m, l, k, s) * 1e3, of.seconds[m][k][s] * 1e3, error);
                        comma = ",";
                    } else {
                        std::printf("| %s | %s | %s | %d | %.1f | %.1f | %+.1f %% |\n",
                                    kLinkNames[l], kModelNames[m], kMethodNames[k], kGpus[s],
                                    measured(m, l, k, s) * 1e3, of.seconds[m][k][s] * 1e3,
                                    100 * error);
                    }
                }
            }
        }
    }
    std::printf(json ? "\n],\"summary\":["
                     : "\n| link | method | largest error |\n|---|---|---|\n");
    comma = "";
    for (int l = 0; l < kLinks; ++l) {
        for (int k = 0; k < kMethods; ++k) {
            std::printf(json ? "%s\n{\"link\":\"%s\",\"method\":\"%s\",\"largest_error\":%.5f}"
                             : "%s| %s | %s | %.1f %% |\n",
                        json ? comma : "", kLinkNames[l], kMethodNames[k],
                        worst[l][k] * (json ? 1 : 100));
            comma = ",";
        }
    }
    int wrong[2] = {};
    for (int l = 0; l < kLinks; ++l) {
        const Residuals of = residuals(l, kConstants[static_cast<std::size_t>(l)]);
        wrong[0] += wrong_orders(of, l, 0);
        wrong[1] += wrong_orders(of, l, 0.01);
    }
    const int pairs = kLinks * kModels * kSizes * kMethods * (kMethods - 1) / 2;
    std::printf(json ? "\n],\"pairs\":%d,\"pairs_in_wrong_order\":%d}\n"
                     : "\nPairs of methods within a group: %d, in the wrong order: %d",
                pairs, wrong[0]);
    if (!json) {
        std::printf(" (%d of those measured 1 %% or more apart).\n", wrong[1]);
    }
    return beyond == 0 && wrong[0] == 0;
}

}  // namespace
}  // namespace deft::anchors

int main(int argc, char** argv) {
    const char* option = argc > 1 ? argv[1] : "";
    const bool refine = std::strcmp(option, "--refine") == 0;
    if (refine || std::strcmp(option, "--fit") == 0) {
        deft::anchors::print_fit(refine);
        return 0;
    }
    return deft::anchors::print_table(std::strcmp(option, "--json") == 0) ? 0 : 1;
}
