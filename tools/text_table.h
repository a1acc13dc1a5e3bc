// SPDX-License-Identifier: Apache-2.0
// Tables for people.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deft::tools {

using Row = std::vector<std::string>;

// Columns as wide as their widest cell; every line begins with `indent` spaces.
std::string table(const std::vector<Row>& rows, std::size_t indent);

}  // namespace deft::tools
