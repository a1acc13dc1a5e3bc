// SPDX-License-Identifier: Apache-2.0
// The one place where misuse of the device is reported.
#pragma once

namespace softdev::verbs {

/// One line on standard error, and one more violation. SOFTDEV_STRICT=abort ends the process there.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Reports and returns `error`: for calls that return an errno value.
int refuse(int error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// Reports, sets errno and returns nullptr: for calls that make an object.
void* refuse_object(int error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// How often this process broke a rule.
unsigned long violations();

}  // namespace softdev::verbs
