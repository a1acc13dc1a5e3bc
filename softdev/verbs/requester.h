// SPDX-License-Identifier: Apache-2.0
// The active half of a queue pair: sends its requests over a connection of its own, and takes the
// replies.
#pragma once

#include <optional>
#include <string>

#include "softdev/verbs/nic.h"
#include "softdev/verbs/pieces.h"
#include "softdev/verbs/send_queue.h"
#include "softdev/verbs/wire.h"

namespace softdev::verbs {

class Requester : public Endpoint {
public:
    explicit Requester(Qp& qp) : qp_(qp) {}

    /// A request was put into the queue.
    void posted();
    /// The queue pair may send from now on.
    void start();
    void ready(unsigned events) override;
    /// Nothing more is sent or taken, but for what the network already has.
    void close();
    /// The program has taken this memory back: a request that is under way may not use it.
    void region_gone(const Region& region);

    SendQueue queue;

private:
    enum class Link { idle, connecting, greeting, open, lost };
    enum class Hold { none, resend, late };

    // The connection.
    void connect();
    int open_socket();
    void greet();
    void lose(Link next);
    // Sending.
    void pump();
    bool begin_next();
    bool prepare(SendRequest& request);
    bool send_some(std::size_t& budget);
    void finish_frame();
    void hold_back(SendRequest& request);
    // Replies.
    void receive();
    bool receive_some();
    void take_reply();
    void take_data();
    bool find_place_of_data(SendRequest& request);
    void acknowledge(std::uint64_t sequence);
    void fail(ibv_wc_status status);
    void break_off(ibv_wc_status status);
    // Time-outs.
    void arm_timer();
    void check_progress();

    Qp& qp_;
    Link link_ = Link::idle;
    std::uint64_t next_ = 0;  ///< sequence to be sent next
    unsigned fetching_ = 0;   ///< reads and atomics without an answer

    wire::RequestHeader header_;
    Pieces out_;
    bool sending_ = false;
    Hold hold_ = Hold::none;
    std::uint64_t hold_timer_ = 0;
    Clock::time_point hold_end_;
    std::string captured_;               ///< Hold::late: the request, as the network has it
    std::uint64_t copied_ = UINT64_MAX;  ///< sequence of which a copy was lost

    wire::Reply reply_;
    std::size_t reply_filled_ = 0;
    Pieces in_;
    bool in_data_ = false;

    std::uint64_t timer_ = 0;
    Clock::time_point last_progress_;
    std::uint64_t sent_bytes_ = 0;
    std::uint64_t confirmed_bytes_ = 0;
    std::optional<Clock::time_point> not_ready_since_;  ///< the peer has no receive request
    Clock::duration not_ready_wait_{};
};

}  // namespace softdev::verbs
