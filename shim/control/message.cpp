// SPDX-License-Identifier: Apache-2.0
#include "shim/control/message.h"

#include "base/bytes.h"

namespace deft::director {
namespace {

constexpr std::uint8_t kVersion = 9;
constexpr std::uint8_t kOrder = 'O';
constexpr std::uint8_t kStaged = 'S';
constexpr std::uint8_t kPressed = 'P';
constexpr std::uint8_t kProof = 'C';  // the companion's
constexpr std::uint8_t kHalted = 'H';
constexpr std::size_t kMaxLanes = 16;
constexpr std::size_t kMaxProofText = 256;  // bytes; a reason may name a file of any name

ByteString begin(std::uint8_t what) {
    ByteString out;
    out.put(what);
    out.put(kVersion);
    return out;
}

bool begins(ByteReader& in, std::uint8_t what) {
    return in.get<std::uint8_t>() == what && in.get<std::uint8_t>() == kVersion;
}

}  // namespace

std::vector<std::byte> encode(const Order& order) {
    ByteString out = begin(kOrder);
    out.put(order.kind);
    out.put(order.stage);
    out.put(order.signature);
    out.put_sized_text(order.plan);
    out.put_sized_text(order.prediction);
    out.put(order.iterations);
    out.put(order.ordinal);
    out.put(order.begin);
    out.put(order.keep);
    out.put(order.patience_ms);
    out.put(static_cast<std::uint8_t>(order.lanes.size()));
    for (const deft_nccl_unique_id_t& id : order.lanes) {
        out.put_bytes(id.internal, sizeof(id.internal));
    }
    return out.take();
}

std::vector<std::byte> encode(const Staged& staged) {
    ByteString out = begin(kStaged);
    out.put(staged.stage);
    out.put(staged.ordinal);
    out.put(staged.step);
    out.put(std::uint8_t{staged.may_pass});
    out.put(std::uint8_t{staged.timed_out});
    out.put_sized_text(staged.reason);
    return out.take();
}

std::vector<std::byte> encode(Pressed pressed) {
    ByteString out = begin(kPressed);
    out.put(pressed.why);
    return out.take();
}

std::vector<std::byte> encode(const Proof& proof) {
    ByteString out = begin(kProof);
    out.put(std::uint8_t{proof.holds});
    out.put(std::uint8_t{proof.pending});
    out.put(std::uint8_t{proof.layers});
    out.put_sized_text(proof.who.substr(0, kMaxProofText));
    out.put_sized_text(proof.why.substr(0, kMaxProofText));
    return out.take();
}

bool decode(std::span<const std::byte> bytes, Proof& proof) {
    ByteReader in(bytes);
    const bool known = begins(in, kProof);
    proof.holds = in.get<std::uint8_t>() != 0;
    proof.pending = in.get<std::uint8_t>() != 0;
    proof.layers = in.get<std::uint8_t>() != 0;
    proof.who = in.get_sized_text();
    proof.why = in.get_sized_text();
    return known && in.ok() && in.left() == 0 && proof.who.size() <= kMaxProofText &&
           proof.why.size() <= kMaxProofText;
}

std::vector<std::byte> encode(Halted halted) {
    ByteString out = begin(kHalted);
    out.put(std::uint8_t{halted.on});
    return out.take();
}

bool decode(std::span<const std::byte> bytes, Order& order) {
    ByteReader in(bytes);
    const bool known = begins(in, kOrder);
    const auto kind = in.get<std::uint8_t>();
    order.kind = static_cast<Kind>(kind);
    order.stage = in.get<std::uint64_t>();
    order.signature = in.get<std::uint64_t>();
    order.plan = in.get_sized_text();
    order.prediction = in.get_sized_text();
    order.iterations = in.get<std::uint64_t>();
    order.ordinal = in.get<std::uint64_t>();
    order.begin = in.get<std::uint64_t>();
    order.keep = in.get<std::uint64_t>();
    order.patience_ms = in.get<std::uint64_t>();
    const std::size_t lanes = in.get<std::uint8_t>();
    if (!known || !in.ok() || lanes > kMaxLanes || kind < static_cast<std::uint8_t>(Kind::Stage) ||
        kind > static_cast<std::uint8_t>(Kind::Rehearse)) {
        return false;
    }
    order.lanes.resize(lanes);
    for (deft_nccl_unique_id_t& id : order.lanes) {
        in.get_bytes(id.internal, sizeof(id.internal));
    }
    return in.ok() && in.left() == 0;
}

bool decode(std::span<const std::byte> bytes, Staged& staged) {
    ByteReader in(bytes);
    const bool known = begins(in, kStaged);
    staged.stage = in.get<std::uint64_t>();
    staged.ordinal = in.get<std::uint64_t>();
    const auto step = in.get<std::uint8_t>();
    staged.step = static_cast<Step>(step);
    staged.may_pass = in.get<std::uint8_t>() != 0;
    staged.timed_out = in.get<std::uint8_t>() != 0;
    staged.reason = in.get_sized_text();
    return known && in.ok() && in.left() == 0 && step <= static_cast<std::uint8_t>(Step::Opened);
}

bool decode(std::span<const std::byte> bytes, Pressed& pressed) {
    ByteReader in(bytes);
    const bool known = begins(in, kPressed);
    const auto why = in.get<std::uint8_t>();
    pressed.why = static_cast<Pressure>(why);
    return known && in.ok() && in.left() == 0 &&
           why <= static_cast<std::uint8_t>(Pressure::Network);
}

bool decode(std::span<const std::byte> bytes, Halted& halted) {
    ByteReader in(bytes);
    const bool known = begins(in, kHalted);
    const auto on = in.get<std::uint8_t>();
    halted.on = on == 1;
    return known && in.ok() && in.left() == 0 && on <= 1;
}

}  // namespace deft::director
