// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace deft::net {

inline constexpr std::size_t kSlots = 64;         // messages in flight per connection
inline constexpr std::size_t kEagerBytes = 8192;  // messages up to this need no credit ...
inline constexpr std::size_t kEagerAhead = 16;  // ... if at most so many are ahead of the receives
// ... and no more bytes than fit the smallest receive window: a receiver may not look for minutes,
// and a window that stays closed would make TCP_USER_TIMEOUT end the connection (tcp(7)).
inline constexpr std::size_t kEagerAheadBytes = 32768;
// On a connection with one path larger ones may, too: a message alone would else wait for its
// receive to be announced, which takes as long as the message. The receiver takes them out of its
// socket before they fill the window, by its idle thread if nobody looks.
inline constexpr std::size_t kLoneBytes = 65536;
inline constexpr std::size_t kLoneAheadBytes = 524288;

// How far a sender may run ahead of the receives it knows of.
struct Ahead {
    std::size_t each;  // largest message
    std::size_t all;   // bytes of all of them; kEagerAhead messages at most
};
inline constexpr Ahead ahead_of_receives(std::size_t paths) {
    return paths == 1 ? Ahead{kLoneBytes, kLoneAheadBytes} : Ahead{kEagerBytes, kEagerAheadBytes};
}

// What NCCL holds as a request: the head of a slot of a Sender or a Receiver, or of a flush there.
struct Request {
    enum class Kind : unsigned char { Send, Receive, Flush };
    Kind kind = Kind::Send;
    void* owner = nullptr;  // the Sender or Receiver
    bool held = false;      // NCCL has it and has not yet been told that it is done
};

}  // namespace deft::net
