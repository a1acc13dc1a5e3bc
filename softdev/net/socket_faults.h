// SPDX-License-Identifier: Apache-2.0
// Makes the Socket transport of this process slow, silent or broken, for tests of what others do
// then. Off unless the environment asks for it; a wrong value fails init.
//
//   SOFTNET_SOCKET_RATE=N             at most N bytes per second leave the process
//   SOFTNET_SOCKET_FAULT=WHAT:AT:FILE WHAT "hold": nothing moves any more, in no direction and for
//                                     good; "fail": every connection is broken from then on.
//                                     AT: bytes that have been sent, from when there is FILE.asked
//                                     where AT is "asked" or "asked+BYTES"; "init": the call holds
//                                     there (hold only). FILE is made when it happens.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace softdev::net {

class SocketFaults {
public:
    enum class State { None, Held, Broken };

    static SocketFaults& process();

    // In the transport's init. False: the environment is wrong, and a warning has said so. Does not
    // return where init is what is held.
    bool init();
    State state() const { return state_.load(std::memory_order_acquire); }
    // How many bytes may leave now; 0: none yet. Any thread.
    size_t allowance();
    void sent(size_t bytes);

private:
    SocketFaults();
    void happen();
    bool asked();

    bool active_ = false;
    double nanoseconds_per_byte_ = 0;
    State wanted_ = State::None;
    uint64_t at_ = 0;
    bool at_init_ = false;
    bool when_asked_ = false;
    std::string file_;
    std::string ask_;    // a file
    std::string wrong_;  // variable that cannot be read

    std::atomic<State> state_{State::None};
    std::atomic<int64_t> next_ns_{0};
    std::atomic<uint64_t> sent_{0};
    std::atomic<bool> asked_{false};
};

}  // namespace softdev::net
