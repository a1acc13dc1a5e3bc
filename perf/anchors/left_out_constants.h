// SPDX-License-Identifier: Apache-2.0
// Written by `anchors --fit-left-out`: fitted to the rows of one model each.
#pragma once

#include "perf/anchors/left_out.h"

namespace deft::anchors {

inline constexpr std::array<SharedConstants, kModels> kFittedTo = {{
    // resnet50
    {{{
         {1.222e+09, 1.188e-05, 0.004817, 0.1474},
         {6.267e+09, 1.38e-05, 0.03224, 0.06639},
     }},
     {{
         {1.013e-05, 9.854e-05},
         {2.031e-05, 8.238e-05},
         {1.142e-05, 0.0004484},
         {0.000909, 0.0002697},
     }}},
    // bert-base
    {{{
         {1.13e+09, 5.528e-06, 0.003793, 0.3757},
         {4.633e+09, 1.002e-05, 0.1133, 0.6919},
     }},
     {{
         {4.424e-05, 8.13e-05},
         {4.292e-05, 0.0001361},
         {0.000195, 0.0001063},
         {0.0001778, 0.0003937},
     }}},
}};

}  // namespace deft::anchors
