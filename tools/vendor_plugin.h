// SPDX-License-Identifier: Apache-2.0
// The network plugin that NCCL would load by itself: a vendor's libnccl-net.so (EFA, Spectrum-X,
// TCPX) on the loader's search path. A set NCCL_NET_PLUGIN takes its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/environment.h"

namespace deft::tools {

// Its path, or an empty string: LD_LIBRARY_PATH of the environment, the loader's cache, then its
// standard folders. deft's own library under that name is none. What the RUNPATH of the job's
// libnccl adds is not known here.
std::string vendor_plugin(const Environment& environment);

// The same with what decides: `cache` is the content of /etc/ld.so.cache, `folders` the standard
// ones.
std::string vendor_plugin(const Environment& environment, std::string_view cache,
                          const std::vector<std::string>& folders);

// Paths that the loader's cache has for a library's name (glibc 2.2 and later). Pure.
std::vector<std::string> cached_paths(std::string_view cache, std::string_view name);

}  // namespace deft::tools
