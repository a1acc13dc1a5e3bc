// SPDX-License-Identifier: Apache-2.0
// What a command says of bad input.
#pragma once

#include <string>

#include "tools/planner/fields.h"

namespace deft::tools {

// Its message, or "accepted".
template <class Call>
std::string complaint_of(Call&& call) {
    try {
        call();
    } catch (const InputError& error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace deft::tools
