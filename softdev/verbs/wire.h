// SPDX-License-Identifier: Apache-2.0
// What queue pairs say to each other over TCP. A connection belongs to one requester: hello and
// requests go one way, replies come back. Both ends have the byte order of NCCL's platforms.
#pragma once

#include <cstdint>

namespace softdev::verbs::wire {

constexpr std::uint32_t kMagic = 0x53565242;
constexpr std::uint32_t kVersion = 1;

struct Hello {
    std::uint32_t magic = kMagic;
    std::uint32_t version = kVersion;
    std::uint32_t source_qpn = 0;
    std::uint32_t target_qpn = 0;
    std::uint32_t psn = 0;
    std::uint32_t ece = 0;  ///< the vendor's extensions in use
};

enum class Request : std::uint8_t { write = 1, write_imm, send, send_imm, read, swap, add };

constexpr std::uint8_t kSolicited = 1;
constexpr std::uint8_t kLost = 2;  ///< the receiver is to behave as if this copy never came

struct RequestHeader {
    Request kind = Request::write;
    std::uint8_t flags = 0;
    std::uint16_t reserved = 0;
    std::uint32_t length = 0;  ///< of the payload that follows; of a read: of its answer
    std::uint32_t imm = 0;     ///< as the caller gave it
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
    std::uint64_t sequence = 0;
    std::uint64_t operand = 0;  ///< of an atomic: to add, or to compare with
    std::uint64_t swap = 0;
};

enum class Answer : std::uint8_t { accepted = 1, ack, nak, rnr, data };

struct Reply {
    Answer kind = Answer::ack;
    std::uint8_t status = 0;     ///< nak: the requester's ibv_wc_status
    std::uint16_t timer = 0;     ///< rnr: 10 us to wait before another try
    std::uint32_t length = 0;    ///< data: bytes that follow
    std::uint64_t sequence = 0;  ///< all up to this one are done; nak, rnr and data: this one
};

}  // namespace softdev::verbs::wire
