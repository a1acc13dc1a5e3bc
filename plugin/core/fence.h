// SPDX-License-Identifier: Apache-2.0
// The sender's side of a fence: from the loss of a path until it is certain what of it came, and
// that nothing of it is read or written any more.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "plugin/core/clock.h"
#include "plugin/core/path.h"

namespace deft::net {

// Of one path; the incarnation after the lost one is used when this is closed again. Not
// thread-safe.
class Fence {
public:
    static constexpr Nanos kAskFirst = 5 * kMillisecond;  // then twice as long each time
    static constexpr Nanos kAskSlowest = 100 * kMillisecond;

    // `path`: what has to be retracted first; NULL: nothing reads memory for it.
    void open(std::unique_ptr<Path> path, std::uint32_t incarnation, Nanos now) {
        path_ = std::move(path);
        incarnation_ = incarnation;
        asked_ = true;
        opened_ = ask_at_ = now;
        pause_ = kAskFirst;
    }
    bool is_open() const { return asked_ || path_ != nullptr; }
    // The receiver has not said yet how much came: what the path had may still land.
    bool unanswered() const { return asked_; }
    // Work requests of the path are open on this host.
    bool reading() const { return path_ != nullptr; }
    // Goes on taking the path back.
    void retract() {
        if (path_ != nullptr && path_->retract()) {
            path_->close(0);
            path_.reset();
        }
    }
    // The connection ends.
    void drop() {
        if (path_ != nullptr) {
            path_->close(0);
            path_.reset();
        }
        asked_ = false;
    }
    // The question is to be put (again).
    bool ask_due(Nanos now) const { return asked_ && now >= ask_at_; }
    // Some path has taken it.
    void put(Nanos now) {
        ask_at_ = now + pause_;
        pause_ = pause_ * 2 < kAskSlowest ? pause_ * 2 : kAskSlowest;
    }
    // True if that is the answer that was waited for.
    bool answered(std::uint32_t incarnation) {
        return incarnation == incarnation_ && std::exchange(asked_, false);
    }
    std::uint32_t incarnation() const { return incarnation_; }
    Nanos opened() const { return opened_; }

private:
    std::unique_ptr<Path> path_;
    std::uint32_t incarnation_ = 0;
    bool asked_ = false;
    Nanos opened_ = 0;
    Nanos ask_at_ = 0;
    Nanos pause_ = kAskFirst;
};

}  // namespace deft::net
