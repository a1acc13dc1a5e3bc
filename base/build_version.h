// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deft {

// "0.1.0+9e0a02f8d1c3": the release and the commit that this was built from, as deft_version()
// says. Not that function itself, which the guest interposes. The product and the command have it
// from packaging/version.cpp.in; tests link packaging/plain_version.cpp and see the release alone.
const char* build_version() noexcept;

}  // namespace deft
