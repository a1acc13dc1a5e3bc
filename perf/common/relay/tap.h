// SPDX-License-Identifier: Apache-2.0
// A TAP device in a network namespace: an Ethernet interface whose cable this process holds. It
// goes with the process.
#pragma once

#include <cstddef>
#include <string>

#include "base/unique_fd.h"
#include "perf/common/relay/packet.h"

namespace relay {

class Tap {
public:
    // Makes device `name` in the namespace that the path names, administratively down. Throws
    // std::system_error or std::runtime_error. The calling thread is back in its own namespace
    // after.
    Tap(const std::string& namespace_path, const std::string& name);

    int fd() const { return fd_.get(); }
    // Whether the host sees a carrier. Without one nothing passes in either direction.
    void set_carrier(bool on);
    bool carrier() const { return carrier_; }

    bool read(Frame& frame);         // false: nothing there
    bool write(const Frame& frame);  // false: the host does not take it (interface down)

private:
    deft::UniqueFd fd_;
    bool carrier_ = true;
};

}  // namespace relay
