// SPDX-License-Identifier: Apache-2.0
#include "shim/control/message.h"

#include <cstring>

namespace deft::director {
namespace {

constexpr std::uint8_t kVersion = 6;
constexpr std::uint8_t kOrder = 'O';
constexpr std::uint8_t kStaged = 'S';
constexpr std::size_t kMaxLanes = 16;

// Little-endian, as everything deft puts on a wire.
class Writer {
public:
    Writer(std::uint8_t what) {
        byte(what);
        byte(kVersion);
    }
    void byte(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
    void word(std::uint64_t value) {
        for (int i = 0; i < 8; ++i) {
            byte(static_cast<std::uint8_t>(value >> (8 * i)));
        }
    }
    void raw(const void* data, std::size_t size) {
        const auto* from = static_cast<const std::byte*>(data);
        bytes_.insert(bytes_.end(), from, from + size);
    }
    void text(const std::string& value) {
        word(value.size());
        raw(value.data(), value.size());
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

// Every read is checked; after one that fails all others fail.
class Reader {
public:
    Reader(std::span<const std::byte> bytes, std::uint8_t what) : bytes_(bytes) {
        ok_ = byte() == what && byte() == kVersion;
    }
    std::uint8_t byte() {
        std::uint8_t value = 0;
        raw(&value, 1);
        return value;
    }
    std::uint64_t word() {
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) {
            value |= static_cast<std::uint64_t>(byte()) << (8 * i);
        }
        return value;
    }
    void raw(void* data, std::size_t size) {
        if (!ok_ || size > bytes_.size()) {
            ok_ = false;
            return;
        }
        std::memcpy(data, bytes_.data(), size);
        bytes_ = bytes_.subspan(size);
    }
    std::string text() {
        const std::uint64_t size = word();
        if (!ok_ || size > bytes_.size()) {
            ok_ = false;
            return {};
        }
        std::string value(static_cast<std::size_t>(size), '\0');
        raw(value.data(), value.size());
        return value;
    }
    bool ok() const { return ok_; }
    bool finished() const { return ok_ && bytes_.empty(); }

private:
    std::span<const std::byte> bytes_;
    bool ok_ = true;
};

}  // namespace

std::vector<std::byte> encode(const Order& order) {
    Writer out(kOrder);
    out.byte(static_cast<std::uint8_t>(order.kind));
    out.word(order.stage);
    out.word(order.signature);
    out.text(order.plan);
    out.text(order.prediction);
    out.word(order.iterations);
    out.word(order.ordinal);
    out.word(order.keep);
    out.byte(static_cast<std::uint8_t>(order.lanes.size()));
    for (const deft_nccl_unique_id_t& id : order.lanes) {
        out.raw(id.internal, sizeof(id.internal));
    }
    return out.take();
}

std::vector<std::byte> encode(const Staged& staged) {
    Writer out(kStaged);
    out.word(staged.stage);
    out.word(staged.ordinal);
    out.byte(static_cast<std::uint8_t>(staged.step));
    out.byte(staged.may_pass ? 1 : 0);
    out.text(staged.reason);
    return out.take();
}

bool decode(std::span<const std::byte> bytes, Order& order) {
    Reader in(bytes, kOrder);
    const std::uint8_t kind = in.byte();
    order.kind = static_cast<Kind>(kind);
    order.stage = in.word();
    order.signature = in.word();
    order.plan = in.text();
    order.prediction = in.text();
    order.iterations = in.word();
    order.ordinal = in.word();
    order.keep = in.word();
    const std::size_t lanes = in.byte();
    if (!in.ok() || lanes > kMaxLanes || kind < static_cast<std::uint8_t>(Kind::Stage) ||
        kind > static_cast<std::uint8_t>(Kind::Close)) {
        return false;
    }
    order.lanes.resize(lanes);
    for (deft_nccl_unique_id_t& id : order.lanes) {
        in.raw(id.internal, sizeof(id.internal));
    }
    return in.finished();
}

bool decode(std::span<const std::byte> bytes, Staged& staged) {
    Reader in(bytes, kStaged);
    staged.stage = in.word();
    staged.ordinal = in.word();
    const std::uint8_t step = in.byte();
    staged.step = static_cast<Step>(step);
    staged.may_pass = in.byte() != 0;
    staged.reason = in.text();
    return in.finished() && step <= static_cast<std::uint8_t>(Step::Unfit);
}

}  // namespace deft::director
