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
    Stage = 1,    // this plan is meant: say when its cycle has been learned
    Arm = 2,      // the staged plan is in force from the switch call on, or from `begin`
    Forward = 3,  // from the switch call on every call is forwarded
    Open = 4,     // all have learned it: make lanes and memory ready. Changes nothing yet
    Drop = 5,     // a rank has refused the staging: nobody waits for it any longer
    Discard = 6,  // nothing comes of the staging; lanes in the making are finished in peace
    Close = 7,    // lanes from `keep` on are not needed any more
    Rehearse = 8  // all have opened their lanes: from the switch call on they are tried
};

// The body of a proposal. `plan` (JSON), `prediction` and `iterations` are for Stage, `keep` is for
// Open and Close, `lanes` for Open, `ordinal` and `begin` for Arm, `patience_ms` for Rehearse.
struct Order {
    Kind kind = Kind::Stage;
    std::uint64_t stage = 0;      // serial of the Stage it is about
    std::uint64_t signature = 0;  // of the gradients the plan is for
    std::string plan;
    std::string prediction;         // executor::to_text()
    std::uint64_t iterations = 0;   // that plans have run: covap's coefficient goes on from there
    std::uint64_t ordinal = 0;      // gradient calls the leader had made when it named the switch
    std::uint64_t begin = 0;        // see NamedSwitch
    std::uint64_t keep = 0;         // so many of the lanes that are there stay; others are ended
    std::uint64_t patience_ms = 0;  // NCCL may hold a rank's call up for so long
    std::vector<deft_nccl_unique_id_t> lanes;  // of lanes to make
};

enum class Step : std::uint8_t {
    Refused = 0,
    Learned = 1,  // the plan's cycle is this rank's
    Ready = 2,    // lanes and memory are there
    Unfit = 3,    // refused with its lanes made: the others make theirs in peace
    Opened = 4    // lanes are there, but have yet to be tried
};

// A rank's answer to a Stage, and where it stands.
struct Staged {
    std::uint64_t stage = 0;
    std::uint64_t ordinal = 0;  // gradient calls made so far
    Step step = Step::Refused;
    bool may_pass = false;   // of a refusal: it may be worth trying again
    std::string reason;      // of a refusal
    bool timed_out = false;  // of a refusal: the other ranks did not come in time
};

// Why a rank wants the plan in force and its lanes to go.
enum class Pressure : std::uint8_t {
    Memory,  // the job needs the device memory that lanes hold
    Network  // the links of a lane's network are dead, and the job's own carry for them
};
struct Pressed {
    Pressure why = Pressure::Memory;
};

// What a rank's companion has proven of its cycle (proof.h).
struct Proof {
    bool holds = false;
    bool pending = false;      // it may hold soon
    bool layers = false;       // it holds, and layers wait for their own
    std::uint32_t module = 0;  // of the companion's, on that rank alone: not sent
    std::string who;           // the companion's name
    std::string why;           // it does not hold

    bool operator==(const Proof&) const = default;
};

std::vector<std::byte> encode(const Proof& proof);
bool decode(std::span<const std::byte> bytes, Proof& proof);

// A report: whether the kill switch is there for this rank.
struct Halted {
    bool on = false;
};

std::vector<std::byte> encode(const Order& order);
std::vector<std::byte> encode(const Staged& staged);
std::vector<std::byte> encode(Pressed pressed);
std::vector<std::byte> encode(Halted halted);
// False if the bytes are not one; nothing a peer says is trusted to be well-formed.
bool decode(std::span<const std::byte> bytes, Order& order);
bool decode(std::span<const std::byte> bytes, Staged& staged);
bool decode(std::span<const std::byte> bytes, Pressed& pressed);
bool decode(std::span<const std::byte> bytes, Halted& halted);

}  // namespace deft::director
