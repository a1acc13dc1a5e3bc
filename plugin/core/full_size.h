// SPDX-License-Identifier: Apache-2.0
// Whether a path carries pieces that fill packets. Where the largest packet of a switch, tunnel or
// policer on the way is smaller than this host thinks, connections are made, small packets are
// answered, and every full one vanishes. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plugin/core/clock.h"

namespace deft::net {

class FullSize {
public:
    // More than any packet of IP holds.
    static constexpr std::uint32_t kPiece = 64 * 1024;
    // What passes everywhere (RFC 1122, RFC 8200): less says nothing.
    static constexpr std::uint32_t kSmallPacket = 1200;
    static constexpr Nanos kFirstBackOff = kSecond;
    static constexpr Nanos kMaxBackOff = 300 * kSecond;
    // Between trials whether full packets pass again.
    static constexpr Nanos kFirstTrial = 30 * kSecond;
    static constexpr Nanos kMaxTrial = 300 * kSecond;

    void connected() {
        proven_ = sent_ = came_ = false;
        trial_at_ = 0;
    }
    void posted(std::uint32_t bytes) {
        if (bytes > kSmallPacket) {
            sent_ = true;
        }
    }
    // True if that is news: the path carries full-size pieces.
    bool carried(std::uint32_t bytes) {
        const bool news = bytes >= kPiece && !proven_;
        if (news) {
            proven_ = true;
        }
        if (bytes > kSmallPacket) {
            came_ = true;
        }
        small_helped_ = came_ && small_ ? true : small_helped_;
        swallowed_ = came_ ? 0 : swallowed_;
        return news;
    }
    // The connection has ended in silence.
    void lost_in_silence() { swallowed_ += sent_ && !came_ ? 1 : 0; }

    // The next connection keeps to small packets: two did not get full ones through, or one of
    // small packets has carried what those did not.
    bool wants_small() const { return swallowed_ >= 2 || small_helped_; }
    void small(bool small) { small_ = small; }
    // The link may not be what it was.
    void link_returned() {
        small_helped_ = false;
        pause_ = 0;
    }

    // Small packets get through, and it is time to see whether full ones do again.
    bool trial_due(Nanos now) {
        if (!small_ || !came_) {
            trial_at_ = 0;
            return false;
        }
        if (trial_at_ == 0) {
            plan_trial(now);
        }
        return now >= trial_at_;
    }
    void tried(bool passed, Nanos now) {
        small_helped_ = small_helped_ && !passed;
        plan_trial(now);
    }

    bool proven() const { return proven_; }
    // Connections in a row that took a large piece and never answered for one.
    int swallowed() const { return swallowed_; }
    // Before it is tried again, while there are other paths.
    Nanos back_off() const {
        return swallowed_ == 0
                   ? 0
                   : std::min(kFirstBackOff << std::min(swallowed_ - 1, 20), kMaxBackOff);
    }

private:
    void plan_trial(Nanos now) {
        pause_ = pause_ == 0 ? kFirstTrial : std::min(2 * pause_, kMaxTrial);
        trial_at_ = now + pause_;
    }

    // Of this connection:
    bool proven_ = false;  // it has carried a piece of kPiece
    bool sent_ = false;    // it was given more than a small packet
    bool came_ = false;    // and the peer has answered for it
    bool small_ = false;   // its packets are kept small
    Nanos trial_at_ = 0;   // 0: not planned
    // Of the path:
    Nanos pause_ = 0;  // before the trial that is planned
    bool small_helped_ = false;
    int swallowed_ = 0;
};

}  // namespace deft::net
