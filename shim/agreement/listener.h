// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shim/agreement/wire.h"
#include "topology/interfaces.h"

namespace deft::agreement {

// The process's rendezvous: a socket on each address that the others may reach, chosen by
// DEFT_INTERFACES or NCCL_SOCKET_IFNAME. They listen from the start, so that early guests wait in
// the kernel; nobody accepts before the agreement thread runs.
class Listener {
public:
    // Null, and why, if there is nothing to listen on. The selection is process_interfaces(), which
    // reads the environment: on a thread of the job.
    static std::unique_ptr<Listener> open(InterfaceSelection selection, std::string& why);

    // True in the process that opened it; a forked child shares the sockets but must not use them.
    bool ours() const;
    std::size_t size() const { return sockets_.size(); }
    int fd(std::size_t index) const { return sockets_[index].fd.get(); }
    // The endpoints, as many as a trailer may hold; first the one that was preferred last.
    void fill(wire::Trailer& trailer) const;
    // An address of this host by which others are known to reach it. Listens there too; false, and
    // why, if that cannot be.
    bool prefer(const Address& address, std::string& why);

private:
    struct Socket {
        UniqueFd fd;
        wire::Endpoint endpoint;
    };
    std::vector<Socket> sockets_;  // only grows
    std::size_t preferred_ = 0;
    pid_t owner_ = 0;
};

}  // namespace deft::agreement
