// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver of this host, by its files.
#pragma once

#include <string>

#include "tools/doctor/facts.h"
#include "tools/environment.h"

namespace deft::tools::doctor {

GpuFacts read_gpu(const Environment& environment);

// "535.104.05" of the first line of /proc/driver/nvidia/version, or of "libcuda.so.535.104.05".
// Pure.
std::string driver_version_in(const std::string& text);

}  // namespace deft::tools::doctor
