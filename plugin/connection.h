// SPDX-License-Identifier: Apache-2.0
// Listening, connecting and accepting: from a 128-byte handle to a Sender and a Receiver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "plugin/core/port.h"
#include "plugin/core/receiver.h"
#include "plugin/core/sender.h"
#include "plugin/tcp/device.h"
#include "plugin/tcp/tcp_acceptor.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

struct ConnectionOptions {
    Nanos link_timeout = 30 * kSecond;
    const void* context = nullptr;    // NCCL's, which ends with it
    std::uint64_t communicator = 0;   // NCCL's number of it, for messages; 0: not known
    std::size_t streams = 1;          // paths over each pair of links, as far as there is room
    std::string congestion = "auto";  // tcp/congestion.h
    std::string zerocopy = "auto";    // tcp/page_pipes.h
    bool checksum = false;     // of what this end sends; the receiver learns it from the hello
    Ports ports;               // RDMA ports and UCX devices to drive next to the device's links
    GpuMemory* gpu = nullptr;  // NULL: NCCL was not told that messages may be in a GPU's memory
};

// The listening side, until one connection has been accepted.
class Listener {
public:
    // Fills the handle. NULL and the cause on failure.
    static std::unique_ptr<Listener> open(const std::shared_ptr<const Device>& device,
                                          const ConnectionOptions& options,
                                          std::span<std::byte, wire::kHandleBytes> handle,
                                          std::string& problem);
    // NULL while nobody has come in yet. Afterwards the listener only waits to be destroyed.
    std::unique_ptr<Receiver> accept(Nanos now);

private:
    std::unique_ptr<PathSource> source(Admission::Guest guest);

    std::unique_ptr<Admission> admission_;
    std::unique_ptr<Receiver> receiver_;
    ConnectionOptions options_;
};

// How messages call a connection: "connection 0123 to 10.0.0.1, communicator 0x4567". The number is
// NCCL's (commHash), which its profilers print too. Left out where it does not fit as a whole.
template <std::size_t size>
void name_connection(char (&name)[size], std::uint64_t connection, const char* to_or_from,
                     const char* peer, std::uint64_t communicator) {
    const int length = std::snprintf(name, size, "connection %016llx %s %s",
                                     static_cast<unsigned long long>(connection), to_or_from, peer);
    const auto end = static_cast<std::size_t>(std::max(length, 0));
    if (communicator == 0 || end >= size) {
        return;
    }
    const int more = std::snprintf(name + end, size - end, ", communicator 0x%llx",
                                   static_cast<unsigned long long>(communicator));
    if (more < 0 || end + static_cast<std::size_t>(more) >= size) {
        name[end] = '\0';
    }
}

// The connecting side. `handle` is the caller's buffer, the same at each call: it keeps the number
// of the attempt. `options` is asked once an attempt, and not by the thousands of calls that poll
// it: what it allocates waits for other threads' malloc. Returns an ncclResult_t value; `sender`
// stays empty while the attempt goes on.
int connect(const std::shared_ptr<const Device>& device,
            const std::function<ConnectionOptions()>& options,
            std::span<std::byte, wire::kHandleBytes> handle, Nanos now,
            std::unique_ptr<Sender>& sender);

// Drops attempts that nobody polls any more, and those of `context`, unless it is NULL; all of them
// if `all`.
void forget_attempts(Nanos now, bool all, const void* context = nullptr);

}  // namespace deft::net
