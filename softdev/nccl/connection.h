// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <numeric>

#include "softdev/net/net.h"

namespace softdev::nccl {

enum class Pattern : uint8_t { kRing, kTree, kP2p };
inline constexpr size_t kPatterns = 3;
enum class Protocol : uint8_t { kSimple, kLL, kLL128 };
inline constexpr size_t kProtocols = 3;

const char* pattern_name(Pattern pattern);

// NCCL's numbers of operations, as setNetAttr's bit mask has them.
enum class NetOp : uint8_t {
    kBroadcast = 0,
    kReduce = 1,
    kAllGather = 2,
    kReduceScatter = 3,
    kAllReduce = 4,
    kSend = 6,
    kRecv = 7
};

// What a data connection is for; equal on both ends.
struct ConnectionKey {
    Pattern pattern;
    uint8_t channel;
    uint16_t from;
    uint16_t to;
    auto operator<=>(const ConnectionKey&) const = default;
    uint64_t packed() const {
        return (static_cast<uint64_t>(pattern) << 40) | (static_cast<uint64_t>(channel) << 32) |
               (static_cast<uint64_t>(from) << 16) | to;
    }
};

// Buffer sizes of one process, as NCCL has them: NCCL_BUFFSIZE (4 MiB), NCCL_LL_BUFFSIZE (512 KiB),
// NCCL_LL128_BUFFSIZE (4 915 200 bytes), NCCL_P2P_NET_CHUNKSIZE (128 KiB); 8 steps each. An LL step
// carries half of its bytes as payload, an LL128 step 15 of 16.
inline constexpr unsigned kSteps = 8;
struct BufferSizes {
    size_t simple;
    size_t ll;
    size_t ll128;
    size_t p2p_chunk;
    static const BufferSizes& process();
};

// What the network of a communicator can do with a connection's buffers.
struct MemoryRules {
    bool device = false;  // device memory, registered as NCCL_PTR_CUDA (GPU direct)
    bool flush = false;   // what comes into device memory is flushed (iflush)
    CUcontext context = nullptr;
};

// What NCCL says of a tree, whatever its shape: two children and a parent of two trees.
inline constexpr int kTreePeers = 4;

// How one operation uses the step buffer of a connection.
struct Shape {
    Protocol protocol = Protocol::kSimple;
    unsigned steps_per_slice = 1;
    NetOp op = NetOp::kAllReduce;
    // For setNetAttr: connections to each peer, and peers, that the operation uses at a time.
    unsigned flows = 1;
    unsigned peers = 1;
    bool operator==(const Shape&) const = default;
};

// One direction of one data connection: the fifo of registered step buffers, shared by the
// operation that runs on the stream ("kernel") and the progress thread, and the plugin's objects.
class Connection {
public:
    Connection(ConnectionKey key, bool sender, int tag, MemoryRules rules);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    const ConnectionKey& key() const { return key_; }
    bool sender() const { return sender_; }
    size_t bytes() const { return std::accumulate(sizes_.begin(), sizes_.end(), size_t{0}); }
    int peer() const { return sender_ ? key_.to : key_.from; }

    // ---- kernel side
    // -------------------------------------------------------------------------------
    size_t capacity(const Shape& shape) const;  // payload bytes of one slice
    // The next slices have this shape. False while slices of another shape are on their way
    // (sender) or while the progress thread has not got that far (receiver): ask again.
    bool ready_for(const Shape& shape);
    bool can_fill() const;         // sender: a slice is free
    std::byte* fill_at() const;    // where its bytes go
    void post(size_t wire_bytes);  // sender: it is full
    bool can_take() const;         // receiver: a slice came
    std::byte* take_at() const;
    size_t take_size() const;  // bytes that came, as the plugin says
    void release();            // receiver: it is free again
    // Slices filled or taken so far: LL flags are made from it, it is equal on both ends.
    uint64_t sequence() const { return sender_ ? posted_.load() : consumed_.load(); }

    // An operation that will send or receive `slices` slices of this shape is launched. A receiver
    // expects them in the order of these calls, none with more than `most_bytes`.
    void open(const Shape& shape, size_t slices, size_t most_bytes);

    // ---- progress side
    // ----------------------------------------------------------------------------
    enum class Poll { kIdle, kWorked, kFailed };
    Poll progress(net::Net& net, bool optional_completion, int* error);
    // The use that the next isend or irecv belongs to, if there is something to start.
    bool starting(Shape* shape);
    bool drained() const;  // nothing posted that is not done, nothing consumed that is not told
    bool is_open() const;  // an operation that was launched has not had all its slices

    // ---- service side --------------------------------------------------------------------------
    int device = 0;                           // of the network, that carries it
    uint64_t number = 0;                      // in the order in which they are made
    void* comm = nullptr;                     // sendComm or recvComm
    std::array<void*, kProtocols> handles{};  // memory registrations of the buffers
    int register_buffers(net::Net& net);
    int close(net::Net& net);

private:
    struct Expected {
        Shape shape;
        size_t slices;
        size_t most_bytes;
    };
    unsigned depth() const { return kSteps / shape().steps_per_slice; }
    Shape shape() const;
    void set_shape(const Shape& shape, uint64_t base);
    unsigned slot(uint64_t index) const { return static_cast<unsigned>((index - base_) % depth()); }
    size_t slice_bytes() const;
    std::byte* address(uint64_t index) const;
    Poll progress_send(net::Net& net, int* error);
    Poll progress_receive(net::Net& net, bool optional_completion, int* error);
    bool next_expected();
    Poll finish_receives(net::Net& net, int* error);
    int tell_consumed(net::Net& net);
    static std::array<void*, kSteps> filled_with_junk();
    bool on_device(size_t protocol) const;

    const ConnectionKey key_;
    const bool sender_;
    const int tag_;  // the sender's rank in the top parent communicator
    const MemoryRules rules_;
    std::array<std::byte*, kProtocols> buffers_{};  // by Protocol
    std::array<size_t, kProtocols> sizes_{};

    // Counters only grow. Sender: the kernel fills (posted), the progress thread hands to the
    // plugin (started) and frees (done). Receiver: the progress thread posts buffers, counts what
    // came (started) and what is flushed (done), the kernel consumes. The side that changes the
    // shape does so when all slices are at rest, and publishes it: the sender's kernel by posted_,
    // the receiver's progress thread by shape_.
    std::atomic<uint32_t> shape_;
    uint64_t base_ = 0;                // counter at which the present shape began
    std::atomic<uint64_t> opened_{0};  // where the counters will be after all that is launched
    std::atomic<uint64_t> posted_{0};
    std::atomic<uint64_t> done_{0};
    std::atomic<uint64_t> consumed_{0};
    uint64_t started_ = 0;
    std::array<size_t, kSteps> bytes_{};
    // As NCCL's, which nobody clears: a call finds there what an earlier one has left.
    std::array<void*, kSteps> requests_ = filled_with_junk();
    std::array<void*, kSteps> flushes_{};
    std::array<void*, kSteps> received_{};    // requests of what the kernel has not consumed
    std::atomic<uint64_t> told_consumed_{0};  // of which the plugin has been told so

    std::mutex expected_mutex_;
    std::deque<Expected> expected_;  // receiver: not yet begun
    std::atomic<size_t> expected_count_{0};
    size_t left_to_post_ = 0;
    size_t most_bytes_ = 0;  // of each of them
};

}  // namespace softdev::nccl
