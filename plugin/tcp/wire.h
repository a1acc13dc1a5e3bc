// SPDX-License-Identifier: Apache-2.0
// Everything deft puts on the wire between two hosts, and the only code that reads it. docs/wire.md
// describes the layouts. All integers are little-endian. No decoder trusts a length, count or index
// before it has checked it, and none allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/core/port.h"
#include "topology/interfaces.h"

namespace deft::net::wire {

// This release speaks both, so that hosts of a job may be upgraded one by one: a handle names what
// its listener speaks, the sender takes the newest that both do, and the receiver answers in that.
// Version 3 has this choice, and nothing else that 2 lacks.
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::uint16_t kOldestVersion = 2;
constexpr bool spoken(std::uint16_t version) {
    return version >= kOldestVersion && version <= kVersion;
}
inline constexpr std::size_t kHandleBytes = 128;
inline constexpr std::size_t kHelloBytes = 128;
inline constexpr std::size_t kWelcomeBytes = 704;
inline constexpr std::size_t kChunkBytes = 48;
inline constexpr std::size_t kControlBytes = 32;
inline constexpr std::size_t kMaxLinks = 16;
inline constexpr std::size_t kMaxEndpoints = 32;  // both address families of every link
inline constexpr std::size_t kMaxPaths = 16;
inline constexpr std::size_t kMaxPorts = 16;  // of a host

enum class Decoded {
    Ok,
    NotDeft,       // wrong magic: something else speaks here
    WrongVersion,  // deft, but a protocol version that is not spoken here (see the version field)
    Malformed,     // deft of this version, with values that cannot be
    Damaged        // its checksum says that it is not what was sent
};

using Secret = std::array<std::uint8_t, 16>;
// Takes the same time wherever the two differ.
bool equal_secrets(const Secret& a, const Secret& b);

// Where a listener can be reached: one address of one of its links.
struct Endpoint {
    std::uint8_t link = 0;
    std::uint16_t port = 0;
    Address address;
};

struct EndpointList {
    std::array<Endpoint, kMaxEndpoints> entries;
    std::size_t count = 0;
};

// A port that a listener lets paths be made at: an RDMA port, a UCX device.
struct Port {
    using Layer = net::Port::Layer;
    Layer layer = Layer::InfiniBand;
    std::array<std::uint8_t, 16> gid{};
};

struct PortList {
    std::array<Port, kMaxPorts> entries;
    std::size_t count = 0;
};

// The listener knows grants, fences, and paths of other kinds than TCP (Hello::kind).
inline constexpr std::uint8_t kFeatureGrants = 1;
// What it receives may have its place in a GPU's memory.
inline constexpr std::uint8_t kFeatureGpu = 2;

// What a receiver hands to the sender through NCCL.
struct Handle {
    std::uint16_t version = kOldestVersion;  // the oldest that the listener speaks
    std::uint16_t newest = kVersion;         // the newest
    std::uint64_t listener = 0;              // names the listening object at the receiver
    Secret secret{};
    std::uint64_t attempt = 0;  // scratch of the connecting side; 0 from the listener
    std::uint8_t total =
        0;  // endpoints the listener has; more than `endpoints` when they did not fit
    std::uint8_t features = 0;  // of the listener, a bit each; the first releases said 0
    EndpointList endpoints;
    std::uint8_t total_ports = 0;  // as `total`
    PortList ports;
    // Links from this one on carry only while no other does; 0: none do so.
    std::uint8_t first_reserve = 0;
};

// Puts in as many endpoints as fit, then as many ports. Leaves the rest of the buffer zero.
void encode(const Handle& handle, std::span<std::byte, kHandleBytes> out);
Decoded decode(std::span<const std::byte, kHandleBytes> in, Handle& handle);
// Replaces only the scratch field of an encoded handle.
void set_attempt(std::span<std::byte, kHandleBytes> encoded, std::uint64_t attempt);

// Everything below ends with a CRC32C of what is before it; encode() puts it there, decode()
// demands it.
void seal(std::span<std::byte> frame);

// Only a question: what are all your endpoints? Answered with a welcome, then closed.
inline constexpr std::uint8_t kFlagAsk = 1;
// The bytes of every chunk of this path carry a checksum.
inline constexpr std::uint8_t kFlagChecked = 2;
// Large chunks may be sent without a copy (tcp/page_pipes.h).
inline constexpr std::uint8_t kFlagLent = 4;
// Only a question, of a receiver that has lost every path: does the sending end of this connection
// still live? Answered with a welcome (Accepted or Closed), then closed.
inline constexpr std::uint8_t kFlagAlive = 8;
// Some paths of this connection are of another kind than TCP.
inline constexpr std::uint8_t kFlagMixed = 16;
// What is sent may be in a GPU's memory.
inline constexpr std::uint8_t kFlagGpu = 32;

// The version to speak with the listener; 0: there is none in common.
constexpr std::uint16_t common_version(const Handle& handle) {
    const std::uint16_t version = handle.newest < kVersion ? handle.newest : kVersion;
    return version >= handle.version && spoken(version) ? version : std::uint16_t{0};
}

// First bytes on a new connection, from the sender.
struct Hello {
    std::uint16_t version = kVersion;
    std::uint64_t listener = 0;
    Secret secret{};
    std::uint64_t connection = 0;   // random, the same on all paths of a connection
    std::uint32_t incarnation = 0;  // of this path; grows with each attempt
    std::uint16_t path = 0;
    std::uint16_t paths = 0;  // how many the sender intends
    std::uint32_t speed_mbps = 0;
    std::uint8_t remote_link = 0;  // link of the receiver this path was aimed at
    std::uint8_t flags = 0;
    std::uint16_t absent = 0;  // one bit per path that is known not to work: do not wait for it
    char link[32] = "";        // name of the sender's link, for messages
    // Where the sender's process can be asked whether it lives; family 0: nowhere.
    Endpoint home;
    // What this connection is for: a path over itself, or the reception and life line of one of
    // another kind. Only kTcp where the handle lacks kFeatureGrants.
    std::uint8_t kind = kTcp;
    std::uint8_t remote_port = 0;  // kPort: which port of the receiver's
    static constexpr std::uint8_t kTcp = 0;
    static constexpr std::uint8_t kPort = 1;
};
void encode(const Hello& hello, std::span<std::byte, kHelloBytes> out);
Decoded decode(std::span<const std::byte, kHelloBytes> in, Hello& hello);

// The receiver's answer.
// Closed: there is no such listener, or connection, or no longer. Its version is the hello's.
enum class Answer : std::uint16_t { Accepted = 0, WrongVersion = 1, Refused = 2, Closed = 3 };
struct Welcome {
    std::uint16_t version = kVersion;
    Answer answer = Answer::Accepted;
    std::uint32_t speed_mbps = 0;
    std::uint64_t completed = 0;
    std::uint64_t posted = 0;
    EndpointList endpoints;  // all of the listener's
    PortList ports;          // those for which there is room
};
void encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out);
Decoded decode(std::span<const std::byte, kWelcomeBytes> in, Welcome& welcome);

// Frames after that. Sender to receiver: chunk headers, each followed by `length` bytes.
// A probe is followed by bytes that go nowhere; its chunk has kProbe as its message. Fence asks for
// the fence of a path: its chunk has the path as its index and the incarnation as its message.
enum class FrameType : std::uint8_t { Chunk = 1, Bye = 2, Probe = 3, Fence = 4 };
inline constexpr std::uint32_t kMaxProbe = 1 << 16;
struct ChunkHeader {
    FrameType type = FrameType::Chunk;
    std::uint8_t flags = 0;
    std::uint32_t checksum = 0;  // of the payload, with kFlagChecksum
    Chunk chunk;
};
inline constexpr std::uint8_t kFlagChecksum = 1;
inline constexpr std::uint8_t kFlagKept = 2;  // Chunk::kept
void encode(const ChunkHeader& header, std::span<std::byte, kChunkBytes> out);
Decoded decode(std::span<const std::byte, kChunkBytes> in, ChunkHeader& header);

// Receiver to sender: control frames of fixed size.
void encode(const Control& control, std::span<std::byte, kControlBytes> out);
Decoded decode(std::span<const std::byte, kControlBytes> in, Control& control);

}  // namespace deft::net::wire
