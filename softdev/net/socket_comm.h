// SPDX-License-Identifier: Apache-2.0
// One direction of a connection of the Socket transport. Messages go in order over the control
// socket: an 8-byte size, then the bytes, unless there are data sockets and the message is large.
// No locks: isend/irecv/test of one comm come from one thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "softdev/net/socket_helpers.h"

namespace softdev::net {

class SocketComm;

struct SocketRequest {
    enum class State { Free, Queued, Pieces, Done };
    SocketComm* comm = nullptr;
    State state = State::Free;
    char* data = nullptr;
    size_t posted = 0;  // receive: room in the buffer
    uint64_t bytes = 0;
    size_t moved = 0;            // of header and bytes on the control socket
    bool size_known = false;     // receive: the header came
    std::atomic<int> pieces{0};  // outstanding on data sockets
};

class SocketComm {
public:
    // sockets[0] is the control socket, the rest are data sockets.
    // `faults`: SocketFaults act on it.
    SocketComm(Direction direction, std::vector<deft::UniqueFd> sockets, int threads,
               std::string description, bool faults);

    Direction direction() const { return direction_; }

    // NULL when DEFT_NET_MAX_REQUESTS are outstanding.
    SocketRequest* post(void* data, size_t bytes);
    // Moves what it can of the whole queue. Sets *done, and *bytes if done.
    int test(SocketRequest* request, int* done, int* bytes);

private:
    static constexpr size_t kHeaderBytes = sizeof(uint64_t);
    static constexpr size_t kInlineBytes = 128;  // NCCL_SOCKET_INLINE's default

    int progress();
    int progress_send();
    int progress_receive();
    void finish_control(SocketRequest& request);
    bool goes_inline(uint64_t bytes) const { return helpers_ == nullptr || bytes <= kInlineBytes; }
    size_t take_staged(char* to, size_t at_most);
    int fail(int error);  // logs once

    const Direction direction_;
    const bool faults_;
    const std::string description_;  // device and peer
    deft::UniqueFd control_;
    std::unique_ptr<SocketHelpers> helpers_;
    std::array<SocketRequest, 32> requests_;
    uint64_t next_ = 0;  // first whose control part is not finished
    uint64_t tail_ = 0;
    int failed_ = 0;  // result once broken

    // Receive: what was read past the end of the last message, at most one header and one
    // short message.
    char staged_[kHeaderBytes + kInlineBytes];
    size_t staged_begin_ = 0;
    size_t staged_end_ = 0;
};

}  // namespace softdev::net
