// SPDX-License-Identifier: Apache-2.0
// A path over a channel of the UCX module. The sender offers chunks that the receiver has granted,
// and the receiver fetches them, and copies them to where they belong; small chunks come in the
// frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "plugin/core/granted_frame.h"
#include "plugin/core/life_line.h"
#include "plugin/core/port.h"
#include "plugin/ucx/device.h"

namespace deft::net {

class UcxPath final : public Path {
public:
    static constexpr std::uint32_t kInlineBytes = DEFT_UCX_DATA_BYTES;
    static constexpr std::uint32_t kRunBytes = 1 << 20;
    static constexpr Capabilities kCapabilities = {true, kInlineBytes, true, true, kRunBytes};

    // `channel`: used by nobody else. The sender's is connected, the receiver's before its answer.
    UcxPath(std::shared_ptr<UcxChannel> channel, PathRole role, const std::string& description);
    ~UcxPath() override;

    // Sender: a frame of full size, which the receiver answers. That an endpoint was made says
    // nothing about the peer.
    Post greet();
    // Instead of poll(), before anybody has the path: takes nothing beyond the greeting.
    void await_greeting();
    bool greeted() const { return greeted_; }  // the peer was heard
    bool answered() const { return !answer_; }
    void watch(UniqueFd life_line) { life_line_.hold(std::move(life_line)); }

    Capabilities capabilities() const override { return kCapabilities; }
    const Domain* domain() const override { return &channel_->device(); }
    Post post(const Chunk& chunk) override;
    Post send(const Control& control) override;
    Post grant(const Grant& grant) override;
    Post ask_fence(std::uint16_t path, std::uint32_t incarnation) override;
    Post send_bye() override;
    // A message that the peer may still fetch from is abandoned by retract() alone.
    void abandon(std::uint64_t /*message*/) override {}
    Poll poll(PathEvents& events, bool reading) override;
    bool writing() const override { return false; }
    bool drained() const override;
    void close(Nanos limit) override;
    bool retract() override { return ended(nullptr); }
    bool fence(PathEvents& events) override { return ended(&events); }
    Nanos silence() const override;
    void look_after(Nanos now) override;
    Loss loss() const override { return loss_; }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return description_.c_str(); }

private:
    Post send_frame(const GrantedFrame& frame, const void* data = nullptr, std::size_t bytes = 0,
                    std::uint32_t key = 0);
    Poll move(PathEvents* events, std::size_t most);
    void count_acknowledged(PathEvents* events);
    void answer_greeting();
    bool ended(PathEvents* events);
    std::string why() const;  // the channel has failed
    void lose(Loss loss, const std::string& why);
    std::byte* place_of(const Chunk& chunk) const;
    bool take(const std::byte* bytes, const std::byte* data, std::uint64_t size, bool bulk);

    const deft_ucx_module_t& module_;
    std::shared_ptr<UcxChannel> channel_;
    const PathRole role_;
    LifeLine life_line_;
    std::string description_;
    Loss loss_ = Loss::None;
    std::string failure_;

    Grants grants_;                             // that the receiver has given
    PathEvents* events_ = nullptr;              // during a poll
    std::array<bool, DEFT_UCX_DEPTH> chunk_{};  // of the frames that are open, by their number
    std::uint64_t sent_ = 0;                    // frames
    std::uint64_t acknowledged_ = 0;            // of these
    std::uint64_t chunks_ = 0;                  // among those that are acknowledged
    std::uint64_t told_ = 0;                    // of these
    std::uint64_t heard_messages_ = 0;
    Nanos heard_ = 0;
    bool greeted_ = false;
    bool answer_ = false;  // a greeting that has not been answered for want of room
    bool ending_ = false;
    bool bye_ = false;  // the sender sends no more
};

}  // namespace deft::net
