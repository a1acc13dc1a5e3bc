// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <stdexcept>
#include <string>

namespace softdev::nccl {

// What control-path code throws; the API boundary turns it into a code and a last-error text.
class Error : public std::runtime_error {
public:
    Error(ncclResult_t code, const std::string& what) : std::runtime_error(what), code_(code) {}
    ncclResult_t code() const { return code_; }

private:
    ncclResult_t code_;
};

// printf into a string.
std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

// The text ncclGetLastError returns: of the whole process, as NCCL keeps it.
void set_last_error(const std::string& text);
const char* last_error();

}  // namespace softdev::nccl
