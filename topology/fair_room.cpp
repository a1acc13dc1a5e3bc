// SPDX-License-Identifier: Apache-2.0
#include "topology/fair_room.h"

#include <sys/socket.h>

#include <algorithm>

namespace deft {

bool same_source(const Address& a, const Address& b) {
    constexpr std::size_t kNetworkBytes = 8;  // of an IPv6 address
    if (a.family != b.family) {
        return false;
    }
    const std::size_t size = a.family == AF_INET6 ? kNetworkBytes : a.size();
    return std::equal(a.bytes.begin(), a.bytes.begin() + static_cast<std::ptrdiff_t>(size),
                      b.bytes.begin());
}

}  // namespace deft
