// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "softdev/nccl/gate.h"
#include "softdev/nccl/socket.h"

namespace softdev::nccl {

enum class Letter : uint32_t {
    kGather,    // part of an all-gather between ranks
    kHandle,    // listen handle of a data connection
    kCall,      // description of a collective call
    kSend,      // description of a send
    kMismatch,  // the receiver's calls do not fit the sender's
    kQuery,     // how far are you?
    kState,     // answer to kQuery
    kBye,       // the sender leaves: payload "destroy" or "abort"
};

// The control connections of one communicator: one socket to every other rank, one thread that
// reads them. NCCL has a ring and on-demand sockets here; a full mesh also tells at once who died.
// Nothing of this goes through the network plugin.
class Control {
public:
    struct Handlers {
        std::function<void(int peer, Letter, uint64_t key, std::string)>
            letter;                                      // all but kGather, kHandle
        std::function<void(int peer, bool clean)> lost;  // clean: it said bye
    };

    Control(int rank, int nranks, uint64_t magic, const std::atomic<bool>* abort);
    ~Control();

    // Connects to every rank (lower ones by connect, higher ones by accept); blocks. Throws Error.
    void meet(UniqueFd listener, const std::vector<Address>& addresses, const Patience& patience);
    void start(Handlers handlers);
    void stop();  // joins the thread, closes the sockets

    void send(int peer, Letter type, uint64_t key, const std::string& payload);
    void send_to_all(Letter type, uint64_t key, const std::string& payload);

    // Everybody in `who` (sorted, this rank included) gives one blob and gets all. Throws Error
    // naming the ranks that did not come.
    std::vector<std::string> all_gather(uint64_t key, const std::string& blob,
                                        const std::vector<int>& who, const Patience& patience,
                                        const char* what);
    std::vector<std::string> all_gather(uint64_t key, const std::string& blob,
                                        const Patience& patience, const char* what);

    // A letter of type kHandle that came, if it came.
    std::optional<std::string> take_handle(int peer, uint64_t key);
    bool lost(int peer) const { return lost_[peer].load(); }
    Gate& arrivals() { return arrivals_; }

private:
    struct Frame {
        uint32_t type;
        uint32_t bytes;
        uint64_t key;
    };
    struct Peer {
        UniqueFd fd;
        std::mutex sending;
        std::string incoming;
        bool said_bye = false;
    };

    void run();
    bool read_from(int peer);
    void deliver(int peer, const Frame& frame, std::string payload);
    std::optional<std::string> take(Letter type, int peer, uint64_t key);

    const int rank_;
    const int nranks_;
    const uint64_t magic_;
    const std::atomic<bool>* abort_;
    Handlers handlers_;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::unique_ptr<std::atomic<bool>[]> lost_;
    std::mutex mail_mutex_;
    std::map<std::tuple<Letter, int, uint64_t>, std::vector<std::string>> mail_;
    Gate arrivals_;
    UniqueFd wake_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace softdev::nccl
