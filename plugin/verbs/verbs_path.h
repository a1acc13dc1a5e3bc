// SPDX-License-Identifier: Apache-2.0
// A path over a queue pair. The sender writes chunks to where the receiver has granted it, and says
// so in one small message behind them; small chunks come in that message. What the receiver says
// comes back as messages, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "plugin/core/granted_frame.h"
#include "plugin/core/life_line.h"
#include "plugin/core/port.h"
#include "plugin/verbs/pages.h"
#include "plugin/verbs/queue_pair.h"

namespace deft::net {

class VerbsPath final : public Path {
public:
    using Role = PathRole;
    static constexpr std::uint32_t kInlineBytes = 8192;
    static constexpr std::uint32_t kDepth = 64;  // messages of either end that are open
    static constexpr std::uint32_t kRunBytes = 1 << 20;
    static constexpr Capabilities kCapabilities = {true, kInlineBytes, true, true, kRunBytes};

    // What the queue pair needs room for.
    static void size(VerbsQueuePair::Options& options);
    // `pair`: in state Made; takes its receive requests before it is connected, so that no message
    // finds none. NULL and the cause. Some milliseconds.
    static std::unique_ptr<VerbsPath> make(std::shared_ptr<VerbsQueuePair> pair, Role role,
                                           std::string& problem);
    ~VerbsPath() override;

    // Sender, once the queue pair is Ready: a full packet, which the receiver answers. That the
    // states were changed says nothing about the peer.
    Post greet();
    // Instead of poll(), before anybody has the path: takes nothing beyond the greeting.
    void await_greeting();
    bool greeted() const { return greeted_; }  // the peer was heard
    // The TCP connection to the peer's process, on which nothing more comes: its end is the path's.
    // Where a network takes it away, the path goes on without.
    void watch(UniqueFd life_line) { life_line_.hold(std::move(life_line)); }

    Capabilities capabilities() const override { return kCapabilities; }
    const Domain* domain() const override { return pair_->domain().get(); }
    std::shared_ptr<Flusher> flusher() const override { return flusher_; }
    // Of the same port, before anybody has the path.
    void flush_by(std::shared_ptr<Flusher> flusher) { flusher_ = std::move(flusher); }
    Post post(const Chunk& chunk) override;
    Post send(const Control& control) override;
    Post grant(const Grant& grant) override;
    Post ask_fence(std::uint16_t path, std::uint32_t incarnation) override;
    Post send_bye() override;
    // A message of which requests are open is abandoned by retract() alone.
    void abandon(std::uint64_t /*message*/) override {}
    Poll poll(PathEvents& events, bool reading) override;
    bool writing() const override { return false; }
    bool drained() const override { return open_sends_ == 0; }
    void close(Nanos limit) override;
    bool retract() override;
    bool fence(PathEvents& events) override;
    Nanos silence() const override;
    void look_after(Nanos now) override;
    Loss loss() const override { return loss_; }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return description_.c_str(); }

private:
    struct Slot {
        std::uint32_t requests = 0;  // in the send queue
        bool chunk = false;
    };

    VerbsPath(std::shared_ptr<VerbsQueuePair> pair, Role role);
    bool prepare(std::string& problem);
    bool post_receive(std::size_t slot);
    std::size_t send_bytes() const;
    std::size_t receive_bytes() const;
    std::byte* send_slot(std::size_t slot);
    std::byte* receive_slot(std::size_t slot);

    Post send_frame(const GrantedFrame& frame, std::size_t bytes);
    Post post_written(const Chunk& chunk, const GrantedFrame& frame);
    Post post_requests(deft_verbs_send_wr_t& first, std::uint32_t requests, bool chunk);
    bool room(std::uint32_t requests) const;
    deft_verbs_send_wr_t request_of(std::size_t bytes, deft_verbs_sge_t& piece);

    Poll take_completions(PathEvents* events, std::size_t most);
    void answer_greeting();
    void completed(const deft_verbs_wc_t& completion, PathEvents* events);
    void sent(bool good);
    void received(std::size_t slot, std::size_t bytes, PathEvents& events);
    bool take_frame(const GrantedFrame& frame, const std::byte* bytes, PathEvents& events);
    bool ended(PathEvents* events);
    void look_at_life_line();
    void lost_by(const deft_verbs_wc_t& completion);
    void lose(Loss loss, const std::string& why);

    std::shared_ptr<VerbsQueuePair> pair_;
    std::shared_ptr<Flusher> flusher_;
    const Role role_;
    LifeLine life_line_;
    std::string description_;
    Loss loss_ = Loss::None;
    std::string failure_;

    Pages memory_;  // of all slots: sends, then receives
    std::unique_ptr<Registration> registration_;
    std::vector<Slot> slots_;  // of sends, a ring
    std::size_t next_slot_ = 0;
    std::size_t open_sends_ = 0;
    std::size_t open_requests_ = 0;  // in the send queue: writes too
    std::size_t open_receives_ = 0;
    std::uint64_t acknowledged_ = 0;  // chunks
    std::uint64_t told_ = 0;          // of these
    Nanos heard_ = 0;
    bool greeted_ = false;
    bool answer_ = false;  // a greeting that has not been answered for want of room
    bool ending_ = false;
    Nanos flush_seen_ = 0;    // when it was last waited for, 0: never
    Nanos flush_waited_ = 0;  // for requests of a queue pair that has ended
};

}  // namespace deft::net
