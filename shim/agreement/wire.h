// SPDX-License-Identifier: Apache-2.0
// What the ranks say to each other while they agree, and the only code that reads it. All integers
// are little-endian. No decoder trusts a length or a rank before it has checked it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "topology/interfaces.h"

namespace deft::agreement::wire {

inline constexpr std::uint8_t kVersion = 4;

// ---- the trailer: bytes 64..127 of a unique id --------------------------------------------------

inline constexpr std::size_t kTrailerAt = 64;
inline constexpr std::size_t kTrailerBytes = 64;
inline constexpr std::size_t kMaxEndpoints = 5;  // IPv4; less if there are IPv6 ones

using Nonce = std::array<std::uint8_t, 16>;
// Takes the same time wherever the two differ.
bool equal(const Nonce& a, const Nonce& b);
// Its halves: the first is the same in all trailers of a process, the second in none. Both random.
std::uint64_t process_of(const Nonce& nonce);
std::uint64_t council_of(const Nonce& nonce);

struct Endpoint {
    Address address;
    std::uint16_t port = 0;
};

struct Trailer {
    std::uint16_t maker = 0;  // Maker
    Nonce nonce{};
    std::array<Endpoint, kMaxEndpoints> endpoints;
    std::size_t count = 0;
};

enum class Decoded {
    Ok,
    Absent,        // zeros, or something that is not ours
    WrongVersion,  // ours, of another release
    Malformed
};

// Puts in as many endpoints as fit, in their order.
void encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out);
Decoded decode(std::span<const std::byte, kTrailerBytes> in, Trailer& trailer);

// ---- frames -------------------------------------------------------------------------------------

// magic u16, version u8, type u8, payload length u32, council u64, rank u32; then the payload, then
// the seal of both (seal.h). TCP's own checksum is 16 bits wide and may have been made anew on the
// way. The type's highest bit says that a shared secret made the seal. A connection carries the
// frames of many councils and ranks: `rank` is the one that a frame comes from, or goes to.
inline constexpr std::size_t kHeaderBytes = 20;
inline constexpr std::uint32_t kEveryone = 0xffffffff;  // of a council, behind this connection

enum class Type : std::uint8_t {
    Hello = 1,     // member -> leader, a rank's first
    AllHere = 2,   // leader -> member: everybody has come and agrees
    Ack = 3,       // member -> leader
    Verdict = 4,   // leader -> member
    Report = 5,    // member -> leader: opaque
    Prepare = 6,   // leader -> member
    Answer = 7,    // member -> leader
    Decision = 8,  // leader -> member
    Leave = 9,     // either: a clean end
    Closed = 10,   // leader -> member: a rank is gone, there will be no more proposals
    Post = 11,     // member -> leader: where the ranks of a child communicator meet
    Ask = 12,      // member -> leader: the same, as a question
    Found = 13,    // leader -> member: the answer
    Ready = 14,    // relay -> who has connected to it: the way to the leader is open
    Gone = 15,     // relay -> leader: the connection that a rank was behind has ended
    Resumed = 16,  // leader -> member that has come back over another connection
    Serve = 17,    // leader -> host: relay for other hosts too
    Offer = 18,    // host -> leader: where, and a secret for them
    Move = 19,     // leader -> host: have that host relay for you
    Join = 20,     // host -> host: the secret
    Name = 21,     // host -> leader, its first: the process that the connection is of
};
inline constexpr std::uint8_t kTypes = 22;
// The longest payload of a type; 0 for those without one and for unknown types.
std::size_t longest(Type type);

struct Header {
    Type type = Type::Hello;
    std::uint32_t length = 0;
    std::uint64_t council = 0;
    std::uint32_t rank = 0;
    bool secret = false;  // its seal was made with one
};
void encode(const Header& header, std::span<std::byte, kHeaderBytes> out);
// Malformed: a wrong magic, an unknown type, or a length beyond what the type may have.
Decoded decode(std::span<const std::byte, kHeaderBytes> in, Header& header);

// A whole frame with this process's seal, shared by all connections that it is sent over.
using Frame = std::shared_ptr<const std::vector<std::byte>>;
Frame make_frame(Type type, std::uint64_t council, std::uint32_t rank,
                 std::span<const std::byte> payload);

struct Hello {
    Nonce nonce{};  // at the same place in all versions
    std::uint32_t nranks = 0;
    std::uint32_t rank = 0;
    std::int32_t nccl_version = 0;
    std::uint64_t process = 0;  // random, the same in all hellos of a process; 0: not said
    std::uint64_t serial = 0;   // of the proposal that the rank has in hand, which comes back; or 0
    std::string deft_version;   // at most 47 bytes
    std::string host;           // at most 63 bytes
    std::string settings;
};
std::vector<std::byte> encode(const Hello& hello);
bool decode(std::span<const std::byte> in, Hello& hello);

struct Verdict {
    bool on = false;
    std::string reason;
    bool ended = false;  // off because a rank has ended the communicator: nothing is amiss
    bool again = false;  // off for now: the leader asks again
};
std::vector<std::byte> encode(const Verdict& verdict);
bool decode(std::span<const std::byte> in, Verdict& verdict);

// What the ranks agree on, in one number (FNV-1a, 64 bit). Each rank makes it of what it will act
// on, not of what it has sent or received; a proposal is committed only if all have the same.
std::uint64_t digest_of(std::uint64_t serial, std::uint64_t switch_call,
                        std::span<const std::byte> body);

// Its body follows the three numbers.
struct Prepare {
    std::uint64_t serial = 0;
    std::uint64_t switch_call = 0;
    std::uint64_t digest = 0;
    std::span<const std::byte> body;
};
std::vector<std::byte> encode(const Prepare& prepare);
bool decode(std::span<const std::byte> in, Prepare& prepare);

// Where a child of the communicator meets: the trailer of its own leader, by the child's hash. A
// question has no trailer.
struct Meeting {
    std::uint64_t child = 0;
    std::array<std::byte, kTrailerBytes> trailer{};
};
std::vector<std::byte> encode(const Meeting& meeting);
std::vector<std::byte> encode_question(std::uint64_t child);
bool decode(std::span<const std::byte> in, Meeting& meeting);
bool decode_question(std::span<const std::byte> in, std::uint64_t& child);

std::vector<std::byte> encode_name(std::uint64_t process);
bool decode_name(std::span<const std::byte> in, std::uint64_t& process);

// Of Offer and Move: a trailer. Of Join: its secret.
std::vector<std::byte> encode_offer(const Trailer& trailer);
bool decode_offer(std::span<const std::byte> in, Trailer& trailer);
std::vector<std::byte> encode_join(const Nonce& nonce);
bool decode_join(std::span<const std::byte> in, Nonce& nonce);

// How many reports of the rank the leader has heard.
std::vector<std::byte> encode_resumed(std::uint64_t heard);
bool decode_resumed(std::span<const std::byte> in, std::uint64_t& heard);

// An answer (yes) or a decision (commit), and the digest of the proposal that it is about.
struct Word {
    std::uint64_t serial = 0;
    bool yes = false;
    std::uint64_t digest = 0;
};
std::vector<std::byte> encode(const Word& word);
bool decode(std::span<const std::byte> in, Word& word);

}  // namespace deft::agreement::wire
