// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/net_attributes.h"

#include <cstring>

namespace softdev::nccl {
namespace {

constexpr uint32_t kAny = ~0u;
// Send, receive, all-to-all, scatter and gather, as NCCL numbers them.
constexpr uint32_t kMessageOperations = 1u << 6 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 10;

uint32_t algorithm_bit(Pattern pattern) {
    switch (pattern) {
        case Pattern::kTree:
            return 1u << 0;
        case Pattern::kRing:
            return 1u << 1;
        case Pattern::kP2p:
            return kAny;
    }
    return kAny;
}

uint32_t protocol_bit(Protocol protocol) {
    switch (protocol) {
        case Protocol::kLL:
            return 1u << 0;
        case Protocol::kLL128:
            return 1u << 1;
        case Protocol::kSimple:
            return 1u << 2;
    }
    return kAny;
}

}  // namespace

NetAttributes::NetAttributes() {
    constexpr deft_net_comm_attr_t kNothing{-1, -1, -1, -1};
    told_ = {kNothing, kNothing, kAny, kAny, kAny};
}

int NetAttributes::tell(net::CommNet& net, const net::Attributes& attributes) {
    net::Attributes told = attributes;
    {
        std::lock_guard lock(mutex_);
        told_ = attributes;
    }
    return net->set_net_attr(net.context(), &told);
}

int NetAttributes::tell_connecting(net::CommNet& net, const Traffic& traffic, bool messages) {
    const deft_net_comm_attr_t both{traffic.most_peers, 1, traffic.flows, 1};
    return tell(net, {both, both, messages ? kMessageOperations : kAny, kAny, kAny});
}

int NetAttributes::tell_transfer(net::CommNet& net, const Connection& connection,
                                 const Shape& shape) {
    net::Attributes before;
    {
        std::lock_guard lock(mutex_);
        before = told_;
    }
    net::Attributes now = before;
    const int peers = shape.peers;
    const int flows = shape.flows;
    (connection.sender() ? now.sendCommAttr : now.recvCommAttr) = {peers, peers, flows, flows};
    now.op = 1u << static_cast<unsigned>(shape.op);
    // Messages have neither algorithm nor protocol; what the last collective had stays.
    if (connection.key().pattern != Pattern::kP2p) {
        now.algo = algorithm_bit(connection.key().pattern);
        now.proto = protocol_bit(shape.protocol);
    }
    return std::memcmp(&before, &now, sizeof now) == 0 ? 0 : tell(net, now);
}

}  // namespace softdev::nccl
