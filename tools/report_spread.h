// SPDX-License-Identifier: Apache-2.0
// One figure of several ranks.
#pragma once

#include <functional>
#include <optional>

#include "tools/report.h"

namespace deft::tools {

// The medians of one figure on all ranks: their middle, and how far they lie apart.
struct Spread {
    std::optional<double> middle, lowest, highest;
};

Spread spread(const RunReport& run,
              const std::function<std::optional<double>(const ObserveFile&)>& of);

}  // namespace deft::tools
