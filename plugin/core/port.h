// SPDX-License-Identifier: Apache-2.0
// Where paths begin that are no streams over TCP: an RDMA port, a UCX device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "deft/abi/verbs.h"
#include "plugin/core/path.h"

namespace deft::net {

enum class PathRole { Sender, Receiver };

// From a TCP connection, on which both ends have agreed on a pair of ports, to a path over them.
// Used by one thread at a time; no call blocks. May be given up at any time.
class Handshake {
public:
    enum class Result { Pending, Connected, Failed };

    virtual ~Handshake() = default;
    // Goes on with it. Connected: `path` is up, as each end has heard the other over it.
    virtual Result poll(std::unique_ptr<Path>& path) = 0;
    virtual const char* failure() const = 0;
};

// Constant once made.
struct Port {
    // Ports of unlike layers are never paired. The numbers are those on the wire.
    enum class Layer : std::uint8_t { InfiniBand = 1, Ethernet = 2, Ucx = 3 };

    Port() = default;
    Port(const Port&) = default;
    Port& operator=(const Port&) = delete;
    virtual ~Port() = default;
    virtual Capabilities capabilities() const = 0;
    virtual std::shared_ptr<Domain> registers_in() const = 0;
    virtual Carrier carrier() const = 0;
    // `socket`: the connection to the peer, which is the path's life line from then on. `flushes`:
    // what the path writes may go to a GPU's memory of this host.
    virtual std::unique_ptr<Handshake> begin(PathRole role, UniqueFd socket,
                                             bool flushes) const = 0;

    std::string name;         // "mlx5_0:1"
    const char* kind = "ib";  // as in LinkCounters
    Layer layer = Layer::InfiniBand;
    std::int64_t speed_mbps = 0;  // 0: not known
    deft_verbs_gid_t gid{};       // no other port that the peer may know has it
    int prefix = 0;               // bits of the GID that its network has in common; 0: not known
    std::vector<std::string> interfaces;  // network interfaces that share its wire
};
using Ports = std::vector<std::shared_ptr<const Port>>;

}  // namespace deft::net
