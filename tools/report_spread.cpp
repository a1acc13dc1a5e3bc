// SPDX-License-Identifier: Apache-2.0
#include "tools/report_spread.h"

#include <algorithm>
#include <vector>

namespace deft::tools {

Spread spread(const RunReport& run,
              const std::function<std::optional<double>(const ObserveFile&)>& of) {
    std::vector<double> values;
    for (const ObserveFile& file : run.ranks) {
        if (const auto value = of(file)) {
            values.push_back(*value);
        }
    }
    if (values.empty()) {
        return {};
    }
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    const double middle =
        values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
    return {middle, values.front(), values.back()};
}

}  // namespace deft::tools
