// SPDX-License-Identifier: Apache-2.0
// What a rank of an observed job writes, for tests to change.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/report.h"

namespace deft::tools {

nlohmann::json quantiles(double median);

// slower: how many times as long its iterations take.
nlohmann::json document(int rank, int ranks, double slower = 1);

ObserveFile parsed(const nlohmann::json& text, const std::string& path = "f.json");

}  // namespace deft::tools
