// SPDX-License-Identifier: Apache-2.0
// For tests that link the shim without the product: they need not be linked anew at each commit.
#include "base/build_version.h"

const char* deft::build_version() noexcept {
    return DEFT_VERSION;
}
