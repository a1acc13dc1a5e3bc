// SPDX-License-Identifier: Apache-2.0
// The calls of the checking plugin, one line each, in the file that SOFTNET_CHECK_CALLS names ("%p"
// is the process): "<thread> <call> <what it was given and gave>". The thread is "main" or its id.
// Polls of test that bring nothing are left out.
#pragma once

namespace softdev::net::checking {

[[gnu::format(printf, 1, 2)]] void trace(const char* format, ...);
// "-", or letter and number: L listens, S sends, R receives, counted in the order of their making.
struct Label {
    char text[16];
};
struct Comm;
Label label(const Comm* comm);

}  // namespace softdev::net::checking
