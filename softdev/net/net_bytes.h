// SPDX-License-Identifier: Apache-2.0
// How many bytes this process has sent over each network, by the network's name. Written to
// SOFTDEV_NET_BYTES (%p: process id) as lines "NAME BYTES" whenever a communicator leaves its
// network, and when the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace softdev::net {

// Any thread; the first call of a name takes a lock.
class NetBytes {
public:
    explicit NetBytes(const char* name);
    void sent(std::size_t bytes);

private:
    void* count_;
};

std::map<std::string, std::uint64_t> bytes_by_network();
void write_bytes_file();

}  // namespace softdev::net
