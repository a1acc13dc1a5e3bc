// SPDX-License-Identifier: Apache-2.0
// What the shim does in this process, decided once from the configuration.
#pragma once

namespace deft {

// In the order of what they may change; everything from Exact on needs the agreement of all ranks.
enum class ShimMode { Off, Observe, Exact, Deft, Covap };

// The mode carries out plans: calls may be diverted.
constexpr bool plans(ShimMode mode) {
    return mode >= ShimMode::Exact;
}

// Read at the first call, then fixed. A configuration that is present and wrong is said once, with
// all its problems, and means Off. Cheap after the first call; any thread.
ShimMode shim_mode() noexcept;

// DEFT_REQUIRE=1 (or a malformed DEFT_REQUIRE: whoever sets it does not want silence).
bool shim_required() noexcept;

// Why communicators must fail under DEFT_REQUIRE=1, or null: the configuration is wrong.
const char* shim_refusal() noexcept;

}  // namespace deft
