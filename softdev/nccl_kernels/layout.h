// SPDX-License-Identifier: Apache-2.0
// Where things lie in the memory that NCCL's host code prepares for its kernels. The names are
// ours. The places were measured with the compiler, on the headers of each release; they differ
// between releases in what `Layout` holds, and nowhere else from 2.27 to 2.30.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace softdev::nccl_kernels {

struct Layout {
    int oldest = 0;              ///< as ncclGetVersion counts: 22703 is 2.27.3
    std::size_t ring_index = 0;  ///< in the ring of a channel
    std::size_t tree = 0;        ///< in a channel
    std::size_t work_count = 0;  ///< in a channel
    // In the work of a collective.
    std::size_t work_bytes = 0;
    std::size_t registered_work_bytes = 0;  ///< of one with registered buffers
    std::size_t output = 0;
    std::size_t input = 0;
    std::size_t shares = 0;          ///< counts of the first, the middle and the last channels
    std::size_t argument = 0;        ///< of the operation
    bool reversed_parts = false;     ///< messages go to channels in bit-reversed order
    bool gathers_unequally = false;  ///< the list of functions has AllGatherV
};

/// nullptr for a release that is not known.
const Layout* layout_of(int version);

template <class T>
T load(const void* base, std::size_t offset) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(base) + offset, sizeof value);
    return value;
}

template <class T>
T* place(void* base, std::size_t offset) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(base) + offset);
}

constexpr int kSteps = 8;  ///< slots of a connection's buffer
constexpr int kProtocols = 3;

// ---- the argument block of a launch ------------------------------------------------------------

namespace arguments {
constexpr std::size_t kCommunicator = 0;
constexpr std::size_t kChannelMask = 8;
constexpr std::size_t kStorage = 16;  ///< 0: works lie in the argument block, else in kWorks
constexpr std::size_t kWorkMask = 20;
constexpr std::size_t kWorks = 24;
constexpr std::size_t kBatches = 32;  ///< the first one of each channel, in channel order
}  // namespace arguments

namespace batch {
constexpr std::size_t kBytes = 16;
constexpr std::size_t kFlags = 0;  ///< 14 bits jump, 1 extends, 2 kind of work, 15 function
constexpr std::size_t kBase = 4;
constexpr std::size_t kSet = 8;  ///< bit i: the work at kBase + i * its size
enum Kind { messages = 0, collective = 1, registered_collective = 2, broadcasts = 3 };
}  // namespace batch

// ---- the communicator --------------------------------------------------------------------------

namespace communicator {
constexpr std::size_t kRank = 0;
constexpr std::size_t kRanks = 4;
constexpr std::size_t kBufferBytes = 16;  ///< of each protocol
constexpr std::size_t kMessageStepBytes = 28;
constexpr std::size_t kAbort = 48;
constexpr std::size_t kStarted = 72;    ///< for profilers, a record of each channel
constexpr std::size_t kCompleted = 80;  ///< the same
constexpr std::size_t kChannels = 96;
}  // namespace communicator

namespace profile {
constexpr std::size_t kBytes = 1024;
constexpr std::uint64_t kEntries = 64;  ///< of 16 bytes: count, time
}  // namespace profile

namespace channel {
constexpr std::size_t kBytes = 368;
constexpr std::size_t kPeers = 0;
constexpr std::size_t kRing = 8;
}  // namespace channel

namespace ring {
constexpr std::size_t kPrevious = 0;
constexpr std::size_t kNext = 4;
constexpr std::size_t kUserRanks = 8;
}  // namespace ring

namespace tree {
constexpr std::size_t kUp = 4;
constexpr std::size_t kDown = 8;
constexpr int kMostDown = 3;
}  // namespace tree

// ---- connections -------------------------------------------------------------------------------

namespace connection {
constexpr std::size_t kBytes = 152;
constexpr std::size_t kPerDirection = 2;  ///< of a peer: first those to send, then to receive
constexpr std::size_t kBuffers = 0;
constexpr std::size_t kTail = 48;
constexpr std::size_t kHead = 56;
constexpr std::size_t kStepBytes = 72;
constexpr std::size_t kQueue = 96;  ///< of the proxy; none where the peer's kernel is met directly
constexpr std::size_t kStep = 104;
}  // namespace connection

namespace queue {
constexpr std::size_t kBytes = 24;
constexpr std::size_t kMode = 0;
constexpr std::size_t kOffset = 4;
constexpr std::size_t kSize = 8;
constexpr int kModeOffset = 1;
}  // namespace queue

// ---- works -------------------------------------------------------------------------------------

namespace collective_work {
constexpr std::size_t kFlags = 0;  ///< 8 bits first channel, 8 last channel, then these:
constexpr std::uint32_t kArgumentIsPointer = 1u << 24;
constexpr std::uint32_t kRegistered = 3u << 25;
constexpr std::uint32_t kProfiled = 1u << 31;
constexpr std::size_t kRoot = 4;
}  // namespace collective_work

namespace message_work {
constexpr std::size_t kBytes = 48;
constexpr std::size_t kAddress = 0;  ///< to send from, and behind each the one to receive
constexpr std::size_t kSize = 16;
constexpr std::size_t kRank = 32;
constexpr std::size_t kChannels = 40;  ///< of all messages
constexpr std::size_t kFirstChannel = 41;
constexpr std::size_t kParts = 42;
constexpr std::size_t kChunk = 44;  ///< as an 8-bit float without sign: 5 bits exponent, 3 mantissa
constexpr std::size_t kFlags = 46;  ///< what follows is for sending; one bit higher to receive
constexpr std::uint8_t kLowLatency = 1u << 0;
constexpr std::uint8_t kRegistered = 1u << 2 | 1u << 4;  ///< for a network, for a peer's memory
constexpr std::uint8_t kProfiled = 1u << 6;
}  // namespace message_work

namespace broadcast_work {
constexpr std::size_t kBytes = 48;
constexpr std::size_t kDepth = 0;  ///< distance from the root in the ring
constexpr std::size_t kChunk = 4;
constexpr std::size_t kInput = 8;
constexpr std::size_t kOutput = 16;
constexpr std::size_t kSize = 24;
}  // namespace broadcast_work

}  // namespace softdev::nccl_kernels
