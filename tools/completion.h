// SPDX-License-Identifier: Apache-2.0
// What makes a shell complete the command line, made of the command line's own definition.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace deft::tools {

// `shell`: bash, zsh or fish.
std::string completion_text(const CLI::App& app, const std::string& shell);

}  // namespace deft::tools
