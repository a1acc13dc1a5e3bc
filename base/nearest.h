// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": the known word nearest to one that was mistyped.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace deft {

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours) to
// `word`, or an empty view when even the nearest differs in more than a third of its letters. Case
// is ignored.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// "; did you mean <nearest>?" to put behind a complaint, or an empty string.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace deft
