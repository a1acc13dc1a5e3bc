// SPDX-License-Identifier: Apache-2.0
// Sends the job's memory over a socket without copying it at this end (DEFT_TCP_ZEROCOPY).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace deft::net {

// Pipes through which pages go into a socket: vmsplice(2) puts references to them into the pipe,
// splice(2) moves these on. The bytes must stay as they are until the peer's program has them: the
// kernel, and on the same host the peer too, read them where they lie.
//
// Any thread, no waiting: who finds every pipe in use is told so, and copies.
class PagePipes {
public:
    // Fewer bytes are copied faster.
    static constexpr std::size_t kWorthwhile = 16384;

    // The process's, shared by all that hold it; NULL where `setting` ("auto", "on", "off") or this
    // host speaks against it. "auto": where takes_many().
    static std::shared_ptr<PagePipes> process(const std::string& setting);

    // As send(2) with MSG_NOSIGNAL on a non-blocking socket; may take fewer bytes than there is
    // room for. EAGAIN: no room now. These bytes have to be copied: ENOTSUP if that holds for this
    // memory (a device's), EBUSY if it may change (all pipes are in use). Any other error is the
    // connection's, or that of a sandbox, which may answer with any number at all: which of the two
    // it is shows when the same bytes are copied.
    ssize_t send(int socket, const std::byte* data, std::size_t length);

    // From now on everything is copied in this process. Says so, once.
    static void give_up(int error);
    static bool given_up();
    static void begin_anew();  // tests

    bool open();  // once, before the first send(); false if no pipe can be had

    // Whether this kernel hands a socket many pages of a pipe at a time: Linux does from 6.5 on,
    // and who took it over. Before, each page is a packet's work. Asked by trying (0.1 ms).
    static bool takes_many();

private:
    static constexpr std::size_t kPipes = 8;  // threads that send at the same moment

    struct Pipe {
        std::atomic<bool> taken{false};
        bool broken = false;
        UniqueFd in;
        UniqueFd out;

        bool open();
        ssize_t send(int socket, const std::byte* data, std::size_t length, int sink);
        void empty(std::size_t bytes, int sink);
    };
    std::array<Pipe, kPipes> pipes_;
    UniqueFd sink_;  // swallows what a socket had no room for
};

}  // namespace deft::net
