// SPDX-License-Identifier: Apache-2.0
// Every policy over models, links and coverage rates, as CSV.
#pragma once

namespace deft::headlines {

// To standard output: speed-up over the job as it is, updates per iteration, what they are worth,
// the late part of the bytes, the oldest gradient and the part of an iteration in which compute
// waits. DeFT also with each of its parts off. Caps: delay 4, merge 4.
void print_matrix();

}  // namespace deft::headlines
