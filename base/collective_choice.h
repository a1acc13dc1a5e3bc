// SPDX-License-Identifier: Apache-2.0
// How NCCL is to carry out one call: what the shim asks for, and what NCCL would do by itself. The
// shim opens a TunedCall around a call that it forwards; NCCL asks the tuner on the same thread,
// inside that call (docs/tuner.md). A call that nobody has opened one for is left to NCCL.
#pragma once

#include <cstdint>

#include "deft/abi/tuner.h"

namespace deft {

// As in NCCL's cost table. What is not set, NCCL chooses.
struct CollectiveChoice {
    std::int8_t algorithm = DEFT_TUNER_UNDEF;  // with its protocol, or neither
    std::int8_t protocol = DEFT_TUNER_UNDEF;
    std::uint8_t channels = 0;

    bool operator==(const CollectiveChoice&) const = default;
    bool own() const { return *this == CollectiveChoice{}; }
};

// What NCCL has for a call. The same on all ranks, as NCCL's own choice is.
struct CollectiveOffer {
    std::uint32_t available = 0;  // bit_of() each way that can be had
    std::uint32_t worth = 0;      // those of them that NCCL does not think to be far from the best
    CollectiveChoice own;         // what NCCL would take; its channels are not known

    static constexpr std::uint32_t bit_of(int algorithm, int protocol) {
        return std::uint32_t{1} << (algorithm * DEFT_TUNER_PROTOCOLS + protocol);
    }
    // A choice that leaves algorithm and protocol to NCCL can always be had.
    bool has(const CollectiveChoice& choice) const {
        return choice.algorithm < 0 || (available & bit_of(choice.algorithm, choice.protocol)) != 0;
    }
};

// The calling thread's, from its construction to its end.
class TunedCall {
public:
    explicit TunedCall(const CollectiveChoice& choice) noexcept : choice_(choice) {
        before_ = current_;
        current_ = this;
    }
    ~TunedCall() { current_ = before_; }
    TunedCall(const TunedCall&) = delete;

    // Of this thread; null: none.
    static TunedCall* current() noexcept { return current_; }

    const CollectiveChoice& choice() const { return choice_; }
    // The tuner's: NCCL has asked once more. offer: null where the way of the call may not be
    // changed.
    void asked(const CollectiveOffer* offer) noexcept {
        asked_ = asked_ < kOften ? asked_ + 1 : kOften;
        offer_ = offer != nullptr ? *offer : CollectiveOffer{};
    }
    // What NCCL has for this call; nothing available where NCCL did not ask, or not just once.
    CollectiveOffer offer() const { return asked_ == 1 ? offer_ : CollectiveOffer{}; }

private:
    static constexpr unsigned kOften = 2;
    static inline thread_local TunedCall* current_ = nullptr;

    CollectiveChoice choice_;
    CollectiveOffer offer_;
    unsigned asked_ = 0;
    TunedCall* before_ = nullptr;
};

}  // namespace deft
