// SPDX-License-Identifier: Apache-2.0
#include "deft/deft.h"

extern "C" [[gnu::visibility("default")]] const char* deft_version(void) {
    return DEFT_VERSION;
}
