// SPDX-License-Identifier: Apache-2.0
// Drives a Net as NCCL's proxy does: connections set up by polling, then streams of messages with a
// bounded number of requests in flight, NULL requests tried again, only the oldest request tested.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "softdev/net/plugin_loader.h"

namespace softdev::net {

// What went wrong while driving a plugin: the call, the result, the connection.
class DriveError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

using Handle = std::array<char, DEFT_NET_HANDLE_MAXSIZE>;
using Deadline = std::chrono::steady_clock::time_point;
Deadline after_seconds(double seconds);

// Throws DriveError unless the result is success.
void check(int result, const Net& net, const char* call);

struct Connections {
    std::vector<void*> send;
    std::vector<void*> receive;
};

// Sets up outgoing.size() connections to the peer and incoming.size() from it; the elements are
// device numbers. `exchange` gives the peer our listen handles and returns the peer's, one for each
// outgoing connection. Both ends must call it.
Connections establish(
    const CommNet& net, const std::vector<int>& outgoing, const std::vector<int>& incoming,
    const std::function<std::vector<Handle>(const std::vector<Handle>&)>& exchange,
    Deadline deadline);
void close_all(const CommNet& net, Connections* connections);

// One direction of one connection with `depth` slots of `slot_bytes`, each registered as part of
// one region. The comm stays the caller's; the registration is the stream's.
class Stream {
public:
    enum class Kind { Send, Receive };
    // Bytes of the index-th message (send); called before each post.
    using SizeOf = std::function<size_t(uint64_t index)>;
    // Send: fill the slot. Receive: check it, `bytes` as test reported.
    using Touch = std::function<void(uint64_t index, char* slot, size_t bytes)>;
    // May this message be posted yet?
    using Ready = std::function<bool(uint64_t index)>;

    Stream(const Net& net, void* comm, Kind kind, int depth, size_t slot_bytes);
    ~Stream();
    Stream(Stream&& other) noexcept;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Begins a run of `messages`. Without size_of every message fills its slot.
    void begin(uint64_t messages, SizeOf size_of = {}, Touch touch = {});
    // Messages are posted only once `ready` says so (none: at once); asked again until it does.
    void wait_until(Ready ready) { ready_ = std::move(ready); }
    // A receiver may let LL-like messages complete early; see DEFT_NET_OPTIONAL_RECV_COMPLETION.
    void allow_early_completion(bool allowed) { early_ = allowed; }

    // Posts what fits and tests the oldest request; true if anything moved.
    bool step();
    bool finished() const { return completed_ == target_; }

    uint64_t completed() const { return completed_; }
    uint64_t in_flight() const { return posted_ - completed_; }
    uint64_t bytes() const { return bytes_; }  // of completed messages, this run
    uint64_t null_requests() const { return null_requests_; }
    Kind kind() const { return kind_; }
    std::string describe() const;

private:
    bool post();
    bool test_oldest();

    Net* net_;
    void* comm_;
    Kind kind_;
    size_t slot_bytes_;
    std::vector<char> buffer_;
    void* mhandle_ = nullptr;
    struct Slot {
        // As NCCL's, which nobody clears between calls.
        void* request = reinterpret_cast<void*>(0xdeadbeefdeadbeef);
        size_t bytes = 0;
    };
    std::vector<Slot> slots_;
    SizeOf size_of_;
    Touch touch_;
    Ready ready_;
    bool early_ = false;
    bool prepared_ = false;  // the next message's slot is filled, its post was answered with NULL
    uint64_t target_ = 0;
    uint64_t posted_ = 0;
    uint64_t completed_ = 0;
    uint64_t bytes_ = 0;
    uint64_t null_requests_ = 0;
};

// What comes after a pass in which nothing moved: a yield, as in NCCL's proxy, a sleep if that is
// not zero, or nothing, where each end has a CPU of its own and what is measured is the plugin.
struct Idle {
    std::chrono::microseconds sleep{0};
    bool spin = false;
};

// Steps all streams until all have finished. Throws DriveError when nothing moved for `patience`.
void run_streams(std::span<Stream* const> streams, Idle idle, std::chrono::seconds patience);

// The seeded pattern messages are made of; a function of its arguments only.
void fill_pattern(uint64_t seed, uint64_t index, char* to, size_t bytes);
// Offset of the first wrong byte, or bytes if there is none.
size_t check_pattern(uint64_t seed, uint64_t index, const char* data, size_t bytes);
// How many bytes are wrong.
size_t wrong_bytes(uint64_t seed, uint64_t index, const char* data, size_t bytes);

}  // namespace softdev::net
