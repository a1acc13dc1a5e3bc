// SPDX-License-Identifier: Apache-2.0
// What the ends of a queue pair send to each other, next to what they write: small messages of one
// frame each. The network's own checksums (ICRC) hold for all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/core/port.h"

namespace deft::net {

enum class GrantedFrameKind : std::uint8_t {
    Greeting = 1,  // padded to a full packet by the sender; answered by the receiver
    Carried = 2,   // a chunk; its bytes follow
    Written = 3,   // a chunk that the writes before this frame have put to where its grant said
    Bye = 4,       // the sender sends no more
    Control = 5,
    Grant = 6,
    Fence = 7  // the sender asks for the fence of another path
};

struct GrantedFrame {
    GrantedFrameKind kind = GrantedFrameKind::Bye;
    Chunk chunk;      // Carried, Written
    Control control;  // Control; Fence: its path and incarnation
    Grant grant;      // Grant
};

inline constexpr std::size_t kGrantedFrameBytes = 48;

void encode(const GrantedFrame& frame, std::span<std::byte, kGrantedFrameBytes> out);
// False: no frame of ours, or with values that cannot be.
bool decode(std::span<const std::byte, kGrantedFrameBytes> in, GrantedFrame& frame);

// Tells `events` of a frame that has come to the end with this role; `bytes`: of the chunk that it
// carries. Not of a greeting, which is the path's own. False: the peer breaks the protocol.
bool hand_over(const GrantedFrame& frame, const std::byte* bytes, PathRole role,
               PathEvents& events);

}  // namespace deft::net
