// SPDX-License-Identifier: Apache-2.0
// Written by `anchors --fit`: one set per link and method.
// {bytes per second, seconds per ring step, per message, contention, per tensor}
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

inline constexpr std::array<std::array<Constants, kMethods>, kLinks> kConstants = {{
    {{
        // 10GbE
        {1.25e+09, 1.0094e-06, 2.7597e-05, 0.0024014, 2.2472e-05},  // BSP
        {1.077e+09, 1.3095e-06, 0.00033492, 0.073299, 0.00026198},  // WFBP
        {9.8916e+08, 7.7178e-05, 2.2435e-05, 0, 0},                 // MG-WFBP
        {1.2128e+09, 1.664e-05, 2.1965e-05, 0.019612, 0.00082295},  // BS
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
