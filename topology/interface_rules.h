// SPDX-License-Identifier: Apache-2.0
// Which of a host's interfaces a job may use: what lists and the default have in common. Only the
// files of these two include this.
#pragma once

#include <string>
#include <vector>

#include "topology/interfaces.h"

namespace deft {

// "eth0, eth1 (down)", or "none": for messages.
std::string names(const std::vector<Interface>& all);

// Why this one cannot be used, whoever names it; empty if it can. One that is down can: it may come
// back.
std::string unusable(const std::vector<Interface>& all, const Interface& link);

// Notes that this one is not taken, and why.
void skip(InterfaceSelection& selection, const Interface& link, const std::string& reason);

// Takes what is used where no list names any. `all`: to judge by; `left`: to choose from.
void choose_default(const std::vector<Interface>& all, const std::vector<Interface>& left,
                    InterfaceSelection& selection);

}  // namespace deft
