// SPDX-License-Identifier: Apache-2.0
// Which calls of a communicator are carried out how, from an agreed call on: an order, as it
// travels between the ranks, and the table that a rank's hooks ask. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/collective_choice.h"
#include "shim/nccl/call_record.h"

namespace deft::tuning {

// Calls that are alike: one choice serves all of them.
struct Key {
    Function function = Function::AllReduce;
    std::uint8_t type = 0;
    std::int32_t op = -1;
    std::uint64_t count = 0;

    bool operator==(const Key&) const = default;
};

// Operations of the job's own count as one: their numbers differ between ranks.
Key key_of(Function function, std::size_t count, int type, int op);
// All-reduce, reduce-scatter and all-gather are tuned.
bool may_tune(Function function);
// As NCCL counts: of what all ranks give or get together.
std::uint64_t bytes_of(const Key& key, int nranks);
// "AllReduce of 4096 float32", "Ring/Simple on 2 channels", "NCCL's own choice".
std::string to_text(const Key& key);
std::string to_text(const CollectiveChoice& choice);

enum class Phase : std::uint8_t {
    Trial = 1,    // each call the next of its candidates, rounds long; then NCCL's own choice
    Compare = 2,  // all calls of a window the first candidate, those of the next the second
    Fixed = 3     // the first candidate
};

struct Entry {
    Key key;
    std::vector<CollectiveChoice> candidates;  // at least one
};

// A trial is made in parts (race.h). The first is a look at each candidate: of its first round, in
// which connections are made, no time counts. Where calls are short, single times say less.
inline constexpr std::uint32_t kLookRounds = 2;
inline constexpr std::uint32_t kShortLookRounds = 8;
inline constexpr std::uint32_t kRounds = 4;       // of the other parts,
inline constexpr std::uint32_t kMostRounds = 16;  // where calls are short
// Windows of a part of a comparison.
inline constexpr std::uint32_t kWindows = 11;

struct Order {
    std::uint64_t serial = 0;  // of the proposal that it came with; not sent in it
    Phase phase = Phase::Fixed;
    std::uint64_t start = 0;         // ordinal of the first call it holds for
    std::uint64_t window_calls = 0;  // of a comparison; of a trial's iteration
    std::uint8_t rounds = 0;         // of a trial's part
    std::uint64_t mark = 0;          // ordinal of an earlier call, up to which all ranks must have
    std::uint64_t history = 0;       // made the same ones (call_history.h)
    std::vector<Entry> entries;
};

inline constexpr std::size_t kMostEntries = 16;
inline constexpr std::size_t kMostCandidates = 24;

std::vector<std::byte> encode(const Order& order);
// False if the bytes are none; nothing a peer says is trusted to be well-formed.
bool decode(std::span<const std::byte> bytes, Order& order);

// What a call gets.
struct Pick {
    CollectiveChoice choice;
    std::uint64_t order = 0;   // serial; 0: none holds for the call
    std::int32_t entry = -1;   // of the order
    std::int32_t sample = -1;  // which of the trial's calls with its key it is; below 0: no trial
};

// What hooks ask. Only the thread that makes the communicator's calls calls pick(), in the order of
// the calls; equal calls on all ranks find equal answers.
class Table {
public:
    explicit Table(Order order) : order_(std::move(order)), seen_(order_.entries.size(), 0) {}

    Pick pick(const Key& key, std::uint64_t ordinal) noexcept;
    const Order& order() const { return order_; }
    // Which candidate that call of a trial with this key got.
    static std::size_t candidate_of(std::uint32_t sample, std::size_t candidates) {
        // Shifted from round to round: else calls of one size that alternate would always meet the
        // same candidates.
        return (sample + sample / candidates) % candidates;
    }
    // Where there is nothing to choose from, nothing is measured.
    static std::uint32_t samples_of(const Order& order, const Entry& entry) {
        const auto candidates = static_cast<std::uint32_t>(entry.candidates.size());
        return candidates > 1 ? order.rounds * candidates : 0;
    }

    // A trial's part has all its samples within so many calls, unless the job does not make some of
    // them any more: each of them comes once an iteration at least, and a host may be some dozens
    // of short iterations ahead of its device. Behind them NCCL's own choices hold, or what was
    // kept before.
    static std::uint64_t calls_of(const Order& order) {
        constexpr std::uint32_t kLate = 96;
        std::uint32_t iterations = kWindows;
        for (const Entry& entry : order.entries) {
            iterations = std::max(iterations, samples_of(order, entry));
        }
        return (iterations + kLate) * order.window_calls;
    }

private:
    void try_next(std::size_t entry, std::uint64_t ordinal, Pick& pick) noexcept;

    const Order order_;
    std::vector<std::uint32_t> seen_;  // calls of a trial, by entry
};

}  // namespace deft::tuning
