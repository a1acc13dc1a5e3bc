// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deft::net {

// Whether interfaces of this host have a carrier, from the kernel's events.
class CarrierWatch {
public:
    // Interface `index` has a carrier as far as the kernel has said. Any thread; reads the pending
    // events at most every few milliseconds. Index 0 (a literal address): always true.
    static bool up(unsigned index);
};

}  // namespace deft::net
