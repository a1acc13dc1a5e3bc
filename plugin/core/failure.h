// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdarg>
#include <cstdio>

namespace deft::net {

// Why a connection cannot go on: sticky, the first cause wins. The values are those of
// ncclResult_t, given in deft/abi/net.h.
struct Failure {
    int code = 0;  // 0: none
    char text[640] = "";

    explicit operator bool() const { return code != 0; }
    [[gnu::format(printf, 3, 4)]] void set(int new_code, const char* format, ...) {
        if (code != 0) {
            return;
        }
        code = new_code;
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
    }
};

}  // namespace deft::net
