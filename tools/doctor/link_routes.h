// SPDX-License-Identifier: Apache-2.0
// Where the kernel would send what a link has for its own network: rules and routes of an operator
// may refuse it (blackhole, unreachable, prohibit), or lead it over another interface.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/interfaces.h"

namespace deft::tools::doctor {

// By the link's name, what is wrong; those that are well, have no carrier, no neighbours or share a
// network with another link are not there. Asks the kernel; nothing is sent.
std::map<std::string, std::string> astray_links(const std::vector<Interface>& links);

// Another address of this one's network; false if it has none.
bool neighbour_of(const Address& own, Address& other);

}  // namespace deft::tools::doctor
