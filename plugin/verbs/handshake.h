// SPDX-License-Identifier: Apache-2.0
// From a TCP connection to a path over a queue pair: both ends make one, tell each other where it
// is, connect them, and hear each other over them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "plugin/core/port.h"
#include "plugin/verbs/queue_pair.h"
#include "plugin/verbs/verbs_path.h"

namespace deft::net {

// One end of it.
class VerbsHandshake final : public Handshake {
public:
    // `socket`: a connection to the peer on which both ends have agreed to go on with RDMA; an
    // address goes each way over it, and it is the path's life line from then on. `role`: the
    // sender speaks first over the queue pair.
    // `flushes`: what the path writes may go to a GPU's memory of this host.
    VerbsHandshake(std::shared_ptr<VerbsDomain> domain, const VerbsQueuePair::Options& options,
                   PathRole role, UniqueFd socket, bool flushes = false);
    ~VerbsHandshake() override;
    VerbsHandshake(const VerbsHandshake&) = delete;
    VerbsHandshake& operator=(const VerbsHandshake&) = delete;

    // Goes on with it. Connected: `path` is up, as a full packet has come over it, and its answer.
    Result poll(std::unique_ptr<Path>& path) override;
    const char* failure() const override { return failure_.c_str(); }

private:
    enum class Stage { Making, Telling, Connecting, Greeting, Over };
    struct Made;  // by a thread that may block

    Result fail(const std::string& why);
    Result lost(const char* call);
    Result take_made();
    Result tell();
    bool hear();
    bool peer_gone() const;
    Result wait_for_states();
    Result greet(std::unique_ptr<Path>& path);

    const PathRole role_;
    Stage stage_ = Stage::Making;
    UniqueFd socket_;
    std::shared_ptr<Made> made_;
    std::unique_ptr<VerbsPath> path_;
    std::shared_ptr<VerbsQueuePair> pair_;
    std::array<std::byte, kVerbsAddressBytes> out_;
    std::size_t out_done_ = 0;
    std::array<std::byte, kVerbsAddressBytes> in_;
    std::size_t in_done_ = 0;
    bool connecting_ = false;  // the peer's address is known
    bool greeted_ = false;     // the sender's greeting is out
    std::string failure_;
};

}  // namespace deft::net
