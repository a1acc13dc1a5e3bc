// SPDX-License-Identifier: Apache-2.0
// What a peer asks for, checked and carried out.
#include <algorithm>
#include <cstring>
#include <string>

#include "softdev/verbs/faults.h"
#include "softdev/verbs/ghost.h"
#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"
#include "softdev/verbs/responder.h"

namespace softdev::verbs {
namespace {

constexpr auto kLongestHeld = std::chrono::milliseconds(10);
constexpr auto kTellAgain = std::chrono::milliseconds(10);

// What ibv_qp_attr::min_rnr_timer stands for, in 10 us.
constexpr std::array<std::uint16_t, 32> kNotReadyTimer = {
    65535, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
    48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
    2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

bool is_write(wire::Request kind) {
    return kind == wire::Request::write || kind == wire::Request::write_imm;
}

bool has_imm(wire::Request kind) {
    return kind == wire::Request::write_imm || kind == wire::Request::send_imm;
}

}  // namespace

bool Responder::needs_receive_request() const {
    return header_.kind == wire::Request::send || has_imm(header_.kind);
}

void Responder::begin_request() {
    filled_ = 0;
    pieces_.clear();
    if (!std::exchange(started_, true) && qp_.now == IBV_QPS_RTR) {
        qp_.event(IBV_EVENT_COMM_EST);
    }
    if (header_.length > kLargestMessage) {
        reject(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
        return;
    }
    if ((header_.flags & wire::kLost) != 0) {
        aside_.resize(header_.length);
        pieces_.add(aside_.data(), aside_.size());
        phase_ = Phase::payload;
        return;
    }
    switch (header_.kind) {
        case wire::Request::read:
            begin_read();
            return;
        case wire::Request::swap:
        case wire::Request::add:
            do_atomic();
            return;
        case wire::Request::write:
        case wire::Request::write_imm:
        case wire::Request::send:
        case wire::Request::send_imm:
            break;
        default:
            reject(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
            return;
    }
    if (needs_receive_request() && requests.empty()) {
        wait_for_receive_request();
        return;
    }
    if (!(is_write(header_.kind) ? begin_write() : begin_receive())) {
        return;
    }
    phase_ = Phase::payload;
    if (pieces_.left() == 0) {
        finish_request();
    }
}

// Nothing of the message is taken before there is a request for it.
void Responder::wait_for_receive_request() {
    phase_ = Phase::blocked;
    tell_not_ready();
}

// And again: the peer's device would ask again, and take silence for a network that is down.
void Responder::tell_not_ready() {
    Answer not_ready;
    not_ready.reply.kind = wire::Answer::rnr;
    not_ready.reply.sequence = header_.sequence;
    not_ready.reply.timer = kNotReadyTimer[qp_.attr.min_rnr_timer & 31U];
    answer(not_ready);
    not_ready_timer_ = qp_.nic.later(kTellAgain, [this] {
        not_ready_timer_ = 0;
        if (answers_.empty()) {
            tell_not_ready();
        }
        if (linked() && send_answers()) {
            watch();
        }
    });
}

bool Responder::begin_write() {
    target_ = nullptr;
    shuffled_ = gpu_late_ = false;
    if ((qp_.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
        report("QP %u: a peer writes, and the queue pair does not allow it", qp_.qp_base.qp_num);
        reject(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        return false;
    }
    if (header_.length == 0) {
        return true;  // no address is looked at
    }
    target_ = qp_.nic.memory.remote(qp_.qp_base.pd, header_.rkey, header_.address, header_.length,
                                    IBV_ACCESS_REMOTE_WRITE);
    if (target_ == nullptr) {
        report("QP %u: rkey 0x%x does not let a peer write %u bytes at 0x%lx", qp_.qp_base.qp_num,
               header_.rkey, header_.length, header_.address);
        reject(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        return false;
    }
    shuffled_ = header_.kind == wire::Request::write && inject(Fault::shuffle);
    if (!shuffled_ && qp_.nic.memory.gpu(header_.rkey)) {
        gpu_late_ = inject(Fault::gpu_late);
        if (!gpu_late_) {
            qp_.nic.reach_gpu();  // writes do not pass each other
        }
    }
    if (shuffled_ || gpu_late_) {
        aside_.resize(header_.length);
        pieces_.add(aside_.data(), aside_.size());
    } else {
        pieces_.add(target_, header_.length);
    }
    return true;
}

bool Responder::begin_receive() {
    const ReceiveRequest& request = requests.front();
    std::size_t left = header_.length;
    for (std::size_t i = 0; i < request.sge_count && left > 0; ++i) {
        ibv_sge sge = request.sges[i];
        sge.length = static_cast<std::uint32_t>(std::min<std::size_t>(sge.length, left));
        char* const at = qp_.nic.memory.local(qp_.qp_base.pd, sge, true);
        if (at == nullptr) {
            report("QP %u, wr_id %lu: lkey 0x%x does not cover %u bytes at 0x%lx for writing",
                   qp_.qp_base.qp_num, request.wr_id, sge.lkey, sge.length, sge.addr);
            fail_receive(IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
            return false;
        }
        pieces_.add(at, sge.length);
        left -= sge.length;
    }
    if (left > 0) {
        report("QP %u, wr_id %lu: the receive request has no room for %zu of %u bytes",
               qp_.qp_base.qp_num, request.wr_id, left, header_.length);
        fail_receive(IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
        return false;
    }
    return true;
}

void Responder::begin_read() {
    const bool allowed = (qp_.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0 &&
                         (header_.length == 0 ||
                          qp_.nic.memory.remote(qp_.qp_base.pd, header_.rkey, header_.address,
                                                header_.length, IBV_ACCESS_REMOTE_READ) != nullptr);
    phase_ = Phase::header;
    if (qp_.attr.max_dest_rd_atomic == 0) {
        reject(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
        return;
    }
    if (!allowed) {
        report("QP %u: rkey 0x%x or the queue pair does not let a peer read %u bytes at 0x%lx",
               qp_.qp_base.qp_num, header_.rkey, header_.length, header_.address);
        reject(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    place_held();  // a read sees what was written before it
    qp_.nic.reach_gpu();
    Answer data;
    data.reply.kind = wire::Answer::data;
    data.reply.sequence = header_.sequence;
    data.reply.length = header_.length;
    data.rkey = header_.rkey;
    data.address = header_.address;
    answer(data);
}

void Responder::do_atomic() {
    char* const at = qp_.nic.memory.remote(qp_.qp_base.pd, header_.rkey, header_.address, 8,
                                           IBV_ACCESS_REMOTE_ATOMIC);
    phase_ = Phase::header;
    if (qp_.attr.max_dest_rd_atomic == 0 || header_.length != 8 || (header_.address & 7U) != 0) {
        reject(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
        return;
    }
    if (at == nullptr || (qp_.attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
        report("QP %u: rkey 0x%x or the queue pair does not let a peer use atomics at 0x%lx",
               qp_.qp_base.qp_num, header_.rkey, header_.address);
        reject(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    place_held();
    qp_.nic.reach_gpu();
    auto* const value = reinterpret_cast<std::uint64_t*>(at);
    Answer data;
    data.reply.kind = wire::Answer::data;
    data.reply.sequence = header_.sequence;
    data.reply.length = 8;
    if (header_.kind == wire::Request::add) {
        data.value = __atomic_fetch_add(value, header_.operand, __ATOMIC_SEQ_CST);
    } else {
        data.value = header_.operand;
        __atomic_compare_exchange_n(value, &data.value, header_.swap, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    answer(data);
}

void Responder::finish_request() {
    phase_ = Phase::header;
    if ((header_.flags & wire::kLost) != 0) {
        return;
    }
    if (shuffled_ && header_.kind == wire::Request::write) {
        if (std::any_of(held_.begin(), held_.end(), [&](const HeldWrite& one) {
                return one.overlaps(target_, aside_.size());
            })) {
            place_held();
        }
        held_.push_back({target_, std::move(aside_)});
        aside_ = {};
        if (held_timer_ == 0) {
            held_timer_ = qp_.nic.later(kLongestHeld, [this] {
                held_timer_ = 0;
                place_held();
            });
        }
    }
    if (gpu_late_ && is_write(header_.kind) && target_ != nullptr) {
        qp_.nic.reach_gpu_late({target_, std::move(aside_)});
        aside_ = {};
    }
    if (needs_receive_request()) {
        complete_receive();
    }
    if (linked()) {
        acknowledge();
    }
}

// A completion means that all bytes before it are in their place.
void Responder::complete_receive() {
    place_held();
    const ReceiveRequest request = requests.front();
    requests.pop_front();
    ibv_wc wc = garbage_completion();
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = is_write(header_.kind) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.byte_len = header_.length;
    wc.wc_flags = 0;
    wc.src_qp = qp_.attr.dest_qp_num;
    if (has_imm(header_.kind)) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = header_.imm;
    }
    if (!qp_.complete_receive(request, wc)) {
        qp_.cq_overrun(qp_.qp_base.recv_cq);
    }
}

void Responder::acknowledge() {
    if (inject(Fault::lose_acks)) {
        mute_ = true;
        answers_.clear();
    }
    if (!answers_.empty() && answers_.back().reply.kind == wire::Answer::ack &&
        answers_.back().sent == 0) {
        answers_.back().reply.sequence = header_.sequence;
        return;
    }
    Answer done;
    done.reply.sequence = header_.sequence;
    answer(done);
}

void Responder::place_held() {
    // The last bytes first, and the last write first.
    for (auto write = held_.rbegin(); write != held_.rend(); ++write) {
        constexpr std::size_t step = 4096;
        for (std::size_t end = write->bytes.size(); end > 0;) {
            const std::size_t begin = (end - 1) / step * step;
            std::memcpy(write->target + begin, write->bytes.data() + begin, end - begin);
            end = begin;
        }
    }
    held_.clear();
}

// The peer hears why, behind what it was to hear anyway.
void Responder::refuse_peer(ibv_wc_status status) {
    Answer no;
    no.reply.kind = wire::Answer::nak;
    no.reply.status = static_cast<std::uint8_t>(status);
    no.reply.sequence = header_.sequence;
    answer(no);
    // An answer that is half sent cannot be overtaken; then the peer runs into its time-out.
    if (answers_.empty() || answers_.front().sent != 0) {
        return;
    }
    std::string last_words;
    for (const Answer& one : answers_) {
        if (one.reply.kind == wire::Answer::data) {
            return;
        }
        last_words.append(reinterpret_cast<const char*>(&one.reply), sizeof one.reply);
    }
    Ghost::haunt(qp_.nic, qp_.nic.release(*this), std::move(last_words), Clock::duration{0});
}

void Responder::reject(ibv_wc_status status, ibv_event_type event) {
    refuse_peer(status);
    qp_.event(event);
    qp_.enter_error();
}

void Responder::fail_receive(ibv_wc_status here, ibv_wc_status there) {
    ibv_wc wc = garbage_completion();
    wc.status = here;
    const ReceiveRequest request = requests.front();
    requests.pop_front();
    if (!qp_.complete_receive(request, wc)) {
        qp_.cq_overrun(qp_.qp_base.recv_cq);
        return;
    }
    refuse_peer(there);
    qp_.enter_error();
}

}  // namespace softdev::verbs
