// SPDX-License-Identifier: Apache-2.0
// The tuner tables, for tests: NCCL looks them up by their exported names.
#pragma once

#include "deft/abi/tuner.h"

namespace deft::tuner {

extern const deft_tuner_v2_t kTableV2;
extern const deft_tuner_v3_t kTableV3;
extern const deft_tuner_v4_t kTableV4;
extern const deft_tuner_v5_t kTableV5;
extern const deft_tuner_v6_t kTableV6;

}  // namespace deft::tuner
