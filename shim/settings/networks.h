// SPDX-License-Identifier: Apache-2.0
// DEFT_LANES: networks that lanes use beside the job's own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deft::executor {

inline constexpr std::size_t kMaxNetworks = 4;

// "IB,Socket": names as ncclConfig_t::netName takes them, at most kMaxNetworks, none twice (case
// does not count). Blanks around a name do no harm; "none" names none. False: `problem` says what
// is wrong, and `networks` is empty.
bool parse_networks(std::string_view text, std::vector<std::string>& networks,
                    std::string& problem);

}  // namespace deft::executor
