// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shim/guard/guard.h"

namespace deft::director {

// The accuracy guard as DEFT_GUARD and DEFT_OPTIMIZER set it.
guard::Settings guard_settings();

}  // namespace deft::director
