// SPDX-License-Identifier: Apache-2.0
#include "tools/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace deft::tools {

std::string table(const std::vector<Row>& rows, std::size_t indent) {
    std::vector<std::size_t> widths;
    for (const Row& row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], row[i].size());
        }
    }
    std::string text;
    for (const Row& row : rows) {
        std::string line(indent, ' ');
        for (std::size_t i = 0; i < row.size(); ++i) {
            line += fmt::format("{:<{}}", row[i], widths[i] + 2);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

}  // namespace deft::tools
