// SPDX-License-Identifier: Apache-2.0
// What a rank reports of its training to the one that decides. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shim/executor/statistics.h"

namespace deft::guard {

using executor::Training;

// So many iterations in one report; the rest of a longer list is left out.
inline constexpr std::size_t kMostTold = 32;
std::vector<std::byte> encode(std::span<const Training> told);
// False for anything encode() did not make.
bool decode(std::span<const std::byte> bytes, std::vector<Training>& told);

}  // namespace deft::guard
