// SPDX-License-Identifier: Apache-2.0
// Figures of a report in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace deft::tools {

// "1.5 MiB"
std::string size_text(double bytes);
// "12.30"; "-": not measured.
std::string number_text(const std::optional<double>& value, int digits = 2);
// "2.28.9" of 22809.
std::string nccl_text(std::int64_t version);

}  // namespace deft::tools
