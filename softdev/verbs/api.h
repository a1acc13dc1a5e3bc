// SPDX-License-Identifier: Apache-2.0
// The functions that programs find in libibverbs.so.1. No exception leaves one.
#pragma once

#include <infiniband/verbs.h>

// Macros of verbs.h that stand in front of the exported functions of the same names.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

#define SOFTVERBS_EXPORT extern "C" __attribute__((visibility("default")))
