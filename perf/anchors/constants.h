// SPDX-License-Identifier: Apache-2.0
// Written by `anchors --fit` and, for 10GbE, `anchors --refine`: one set per link and method.
// {bytes per second, seconds per ring step, per message, contention, per tensor}
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

inline constexpr std::array<std::array<Constants, kMethods>, kLinks> kConstants = {{
    {{
        // 10GbE
        {1.25e+09, 1.7315e-06, 1.9021e-05, 0.14062, 2.7599e-05},      // BSP
        {1.1063e+09, 1.4168e-06, 0.00044223, 0.04679, 7.1278e-05},    // WFBP
        {9.8984e+08, 7.6656e-05, 0.00012531, 0.0023515, 7.9201e-05},  // MG-WFBP
        {1.1711e+09, 1.6429e-05, 0.0017633, 0.018868, 0.00057124},    // BS
    }},
    {{
        // 100Gb IB
        {4.7852e+09, 1.69e-06, 0, 0.026854, 0},                      // BSP
        {3.8898e+09, 5.5986e-06, 0.00052342, 0.010209, 1.0222e-05},  // WFBP
        {2.8698e+09, 0, 0.0011491, 0.047809, 0},                     // MG-WFBP
        {7.2007e+09, 1e-06, 0.001873, 0.001, 0},                     // BS
    }},
}};

}  // namespace deft::anchors
