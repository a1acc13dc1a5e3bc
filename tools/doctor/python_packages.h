// SPDX-License-Identifier: Apache-2.0
// Whether a Python has a package, by its folders; the interpreter is not started.
#pragma once

#include <string>

#include "tools/environment.h"

namespace deft::tools::doctor {

// True only if the package is in none of the interpreter's folders, in none of PYTHONPATH, and not
// in the working folder, and no .pth file adds another folder.
bool surely_missing(const std::string& interpreter, const Environment& environment,
                    const std::string& package);

}  // namespace deft::tools::doctor
