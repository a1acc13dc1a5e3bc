// SPDX-License-Identifier: Apache-2.0
// What a plugin is told of the use of its connections (setNetAttr, tables from v11 on).
#pragma once

#include <mutex>

#include "softdev/nccl/connection.h"
#include "softdev/net/plugin_loader.h"

namespace softdev::nccl {

// How the connections of one pattern of a communicator may be used.
struct Traffic {
    int most_peers = 1;
    int flows = 1;  // connections to each peer
};

// As NCCL's proxy state: one set of attributes for each communicator, written by its service thread
// before every poll of connect and accept, and by its progress thread when a transfer changes them.
class NetAttributes {
public:
    NetAttributes();
    // Service thread: both directions, any algorithm and protocol; messages name their operations.
    int tell_connecting(net::CommNet& net, const Traffic& traffic, bool messages);
    // Progress thread, before isend or irecv: the direction of this connection, if that is news.
    int tell_transfer(net::CommNet& net, const Connection& connection, const Shape& shape);

private:
    int tell(net::CommNet& net, const net::Attributes& attributes);

    std::mutex mutex_;
    net::Attributes told_;
};

}  // namespace softdev::nccl
