// SPDX-License-Identifier: Apache-2.0
// What directors say to each other inside the council's proposals and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deft/abi/nccl.h"

namespace deft::director {

enum class Kind : std::uint8_t {
    Stage = 1,   // make ready for this plan: lanes, memory. Changes nothing yet
    Arm = 2,     // the staged plan is in force from the switch call on
    Forward = 3  // from the switch call on every call is forwarded
};

// The body of a proposal. `plan` (JSON), `lanes` and what follows are for Stage only.
struct Order {
    Kind kind = Kind::Stage;
    std::uint64_t stage = 0;      // serial of the Stage it is about
    std::uint64_t signature = 0;  // of the gradients the plan is for
    std::string plan;
    std::vector<deft_nccl_unique_id_t> lanes;  // of lanes to make; empty: those there are
};

// A rank's answer to a Stage, and where it stands.
struct Staged {
    std::uint64_t stage = 0;
    std::uint64_t ordinal = 0;  // gradient calls made so far
    bool ready = false;
    std::string reason;  // why not
};

std::vector<std::byte> encode(const Order& order);
std::vector<std::byte> encode(const Staged& staged);
// False if the bytes are not one; nothing a peer says is trusted to be well-formed.
bool decode(std::span<const std::byte> bytes, Order& order);
bool decode(std::span<const std::byte> bytes, Staged& staged);

}  // namespace deft::director
