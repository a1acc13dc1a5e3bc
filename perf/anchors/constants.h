// SPDX-License-Identifier: Apache-2.0
// Written by `anchors --fit`: one set per link and method.
// {bytes per second, seconds per ring step, per message, contention, per tensor}
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

inline constexpr std::array<std::array<Constants, kMethods>, kLinks> kConstants = {{
    {{
        // 10GbE
        {1.2352e+09, 0, 1.8278e-05, 0.05, 1.0902e-05},           // BSP
        {1.1179e+09, 2.035e-06, 0.0004603, 0.1692, 0.00022279},  // WFBP
        {9.8305e+08, 7.7573e-05, 0, 0, 0},                       // MG-WFBP
        {1.2277e+09, 9.3288e-06, 9.9733e-05, 0.22258, 0.0007},   // BS
    }},
    {{
        // 100Gb IB
        {5e+09, 0, 0, 0.05, 1.4085e-05},                          // BSP
        {3.6364e+09, 5.6653e-06, 0.00042592, 0.075, 0},           // WFBP
        {2.9251e+09, 0, 1.3951e-05, 0.1293, 2.5729e-05},          // MG-WFBP
        {8.31e+09, 1.662e-05, 0.00011103, 0.059594, 0.00046667},  // BS
    }},
}};

}  // namespace deft::anchors
