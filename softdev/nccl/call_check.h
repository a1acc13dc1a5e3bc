// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "softdev/nccl/control.h"

namespace softdev::nccl {

// What a rank says about one call: compared between ranks.
struct CallHeader {
    uint64_t number;  // collectives of the communicator, from 1; sends: of this pair of ranks
    uint64_t count;
    int32_t function;
    int32_t type;
    int32_t op;  // user operations are all the same here: their scalars may differ
    int32_t root;

    std::string text() const;
    bool fits(const CallHeader& other) const;
};

// Compares this rank's calls with its ring predecessor's (collectives) and with the sender's
// (sends), over the control connections. If two adjacent ranks always agree, all do.
class CallCheck {
public:
    using Mismatch = std::function<void(const std::string& text)>;

    CallCheck(int rank, int nranks, Control* control, Mismatch mismatch);

    void collective(const CallHeader& call);
    void send(int peer, const CallHeader& call);
    void receive(int peer, const CallHeader& call);

    void letter(int peer, Letter type, const std::string& payload);

    uint64_t calls() const;  // collectives so far
    std::string last_call() const;
    // The calls that wait for their connections now ("": none), for the reports of all ranks.
    void entering(const std::string& calls);

private:
    using Key = std::pair<int, uint64_t>;  // peer, number
    void compare(std::map<Key, CallHeader>& here, std::map<Key, CallHeader>& waiting, int peer,
                 const CallHeader& own, bool own_is_mine);
    void report(int peer, const CallHeader& mine, const CallHeader& theirs);

    const int rank_;
    const int nranks_;
    Control* control_;
    Mismatch mismatch_;
    mutable std::mutex mutex_;
    std::map<Key, CallHeader> mine_;    // collectives of this rank, not yet compared
    std::map<Key, CallHeader> theirs_;  // of the predecessor
    std::map<Key, CallHeader> receives_;
    std::map<Key, CallHeader> sends_;  // announced by peers
    uint64_t calls_ = 0;
    std::string last_ = "none";
    std::string entering_;
};

enum class Function : int32_t {
    kAllReduce,
    kReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kAlltoAll,
    kGather,
    kScatter,
    kSend,
    kRecv
};
const char* function_name(Function function);

}  // namespace softdev::nccl
