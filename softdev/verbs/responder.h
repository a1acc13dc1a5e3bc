// SPDX-License-Identifier: Apache-2.0
// The passive half of a queue pair: takes the peer's requests, checks them, moves their bytes, and
// answers.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "softdev/verbs/nic.h"
#include "softdev/verbs/pieces.h"
#include "softdev/verbs/wire.h"

namespace softdev::verbs {

struct ReceiveRequest {
    std::uint64_t wr_id = 0;
    std::array<ibv_sge, kMostSge> sges;
    std::size_t sge_count = 0;
    std::uint64_t number = 0;
};

class Responder : public Endpoint {
public:
    explicit Responder(Qp& qp) : qp_(qp) {}

    bool linked() const { return bool(fd); }
    /// The peer's requester has connected.
    void adopt(deft::UniqueFd socket);
    void ready(unsigned events) override;
    /// Nothing more is placed or answered when this returns.
    void close();
    /// 0, or what ibv_post_recv returns. Reports what is wrong. Under Qp::entry.
    int check(const Qp& qp, const ibv_recv_wr& wr) const;
    /// Takes room for it. Under Qp::entry.
    ReceiveRequest make(const Qp& qp, const ibv_recv_wr& wr);
    /// Requests that were posted while the peer's waited for one.
    void resume();
    void place_held();
    void region_gone(const Region& region);
    void clear();  ///< under Qp::entry, too
    bool solicited() const { return (header_.flags & wire::kSolicited) != 0; }

    std::deque<ReceiveRequest> requests;
    std::atomic<std::uint64_t> freed{0};  ///< as SendQueue::freed

private:
    enum class Phase { header, payload, blocked };
    struct Answer {
        wire::Reply reply;
        std::uint32_t rkey = 0;  ///< of a read, whose bytes are looked up as they are sent
        std::uint64_t address = 0;
        std::uint64_t value = 0;  ///< of an atomic
        std::uint64_t sent = 0;   ///< of reply and bytes together
    };

    bool receive_some(std::size_t& budget);
    void begin_request();
    bool begin_receive();
    bool begin_write();
    void begin_read();
    void do_atomic();
    void wait_for_receive_request();
    void tell_not_ready();
    bool needs_receive_request() const;
    void finish_request();
    void complete_receive();
    void acknowledge();
    void answer(const Answer& answer);
    bool send_answers();
    bool send_answer(Answer& answer);
    void watch();
    void refuse_peer(ibv_wc_status status);
    /// The peer has broken a rule: it is told, and this queue pair ends.
    void reject(ibv_wc_status status, ibv_event_type event);
    /// The receive request cannot take what came.
    void fail_receive(ibv_wc_status here, ibv_wc_status there);

    Qp& qp_;
    std::uint64_t posted_ = 0;  ///< under Qp::entry
    Phase phase_ = Phase::header;
    bool started_ = false;  ///< a request has come
    bool mute_ = false;     ///< Fault::lose_acks
    bool shuffled_ = false;
    bool gpu_late_ = false;  ///< the write that is coming in is seen late
    wire::RequestHeader header_;
    std::size_t filled_ = 0;
    char* target_ = nullptr;
    Pieces pieces_;
    std::vector<char> aside_;  ///< a copy that counts as lost, or one that is placed later
    std::deque<Answer> answers_;
    std::vector<HeldWrite> held_;  ///< Fault::shuffle
    std::uint64_t held_timer_ = 0;
    std::uint64_t not_ready_timer_ = 0;
};

}  // namespace softdev::verbs
