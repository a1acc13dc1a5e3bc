// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "plugin/core/blocking_calls.h"

namespace deft::net {
namespace {

constexpr std::uint32_t kMagic = 0x41524456;  // "VDRA"
constexpr std::uint8_t kShortestWait = 12;    // min_rnr_timer: 0.64 ms
constexpr std::uint8_t kForEver = 7;          // rnr_retry
constexpr std::uint8_t kFarthest = 255;       // hop_limit
constexpr std::uint32_t kFirstPacket = 0;     // of a fresh queue pair on both ends, as NCCL has it
constexpr std::uint32_t kMostNumber = 1U << 24;

}  // namespace

void encode(const VerbsAddress& address, std::span<std::byte, kVerbsAddressBytes> out) {
    ByteWriter writer(out);
    writer.put(kMagic);
    writer.put(address.qp);
    writer.put(address.lid);
    writer.put(address.mtu);
    writer.put(address.layer);
    writer.put_bytes(address.gid.raw, sizeof(address.gid.raw));
    writer.put(address.ece.vendor_id);
    writer.put(address.ece.options);
    writer.put(address.ece.comp_mask);
    writer.zeros();
}

bool decode(std::span<const std::byte, kVerbsAddressBytes> in, VerbsAddress& address) {
    ByteReader reader(in);
    const bool ours = reader.get<std::uint32_t>() == kMagic;
    address.qp = reader.get<std::uint32_t>();
    address.lid = reader.get<std::uint16_t>();
    address.mtu = reader.get<std::uint8_t>();
    address.layer = reader.get<std::uint8_t>();
    reader.get_bytes(address.gid.raw, sizeof(address.gid.raw));
    address.ece.vendor_id = reader.get<std::uint32_t>();
    address.ece.options = reader.get<std::uint32_t>();
    address.ece.comp_mask = reader.get<std::uint32_t>();
    return ours && reader.ok() && address.qp < kMostNumber && address.mtu >= DEFT_VERBS_MTU_256 &&
           address.mtu <= DEFT_VERBS_MTU_4096;
}

const char* name_of(VerbsQueuePair::State state) {
    switch (state) {
        case VerbsQueuePair::State::Made:
            return "made";
        case VerbsQueuePair::State::Connecting:
            return "connecting";
        case VerbsQueuePair::State::Ready:
            return "ready";
        case VerbsQueuePair::State::Ending:
            return "ending";
        case VerbsQueuePair::State::Ended:
            return "ended";
        case VerbsQueuePair::State::Gone:
            return "gone";
        case VerbsQueuePair::State::Failed:
            return "failed";
    }
    return "?";
}

std::shared_ptr<VerbsQueuePair> VerbsQueuePair::make(std::shared_ptr<VerbsDomain> domain,
                                                     const Options& options, std::string& problem) {
    std::shared_ptr<VerbsQueuePair> made(new VerbsQueuePair(std::move(domain), options));
    return made->create(problem) && made->describe(problem) ? made : nullptr;
}

bool VerbsQueuePair::create(std::string& problem) {
    const VerbsLibrary& library = context().library();
    const auto entries = static_cast<int>(options_.sends + options_.receives);
    cq_ = library.create_cq(context().get(), entries, nullptr, nullptr, 0);
    if (cq_ == nullptr) {
        problem = context().device() + ": no completion queue: " + std::strerror(errno);
        return false;
    }
    deft_verbs_qp_init_attr_t attributes{};
    attributes.send_cq = attributes.recv_cq = cq_;
    attributes.cap = {options_.sends, options_.receives, 1, 1, 0};
    attributes.qp_type = DEFT_VERBS_QPT_RC;
    qp_ = library.create_qp(domain_->get(), &attributes);
    if (qp_ == nullptr) {
        problem = context().device() + ": no queue pair: " + std::strerror(errno);
        return false;
    }
    context().watch(qp_, lost_);
    if (const int error = to_init(); error != 0) {
        problem = context().device() + ": queue pair to INIT: " + std::strerror(error);
        return false;
    }
    return true;
}

bool VerbsQueuePair::describe(std::string& problem) {
    deft_verbs_port_attr_t port{};
    if (!context().query_port(options_.port, port, problem)) {
        return false;
    }
    own_.qp = qp_->qp_num;
    const VerbsLibrary& library = context().library();
    if (library.query_ece == nullptr || library.set_ece == nullptr ||
        library.query_ece(qp_, &own_.ece) != 0) {
        own_.ece = {};
    }
    own_.lid = port.lid;
    own_.mtu = static_cast<std::uint8_t>(port.active_mtu);
    own_.layer = port.link_layer;
    mtu_ = port.active_mtu;
    largest_message_ = port.max_msg_sz;
    global_ = port.link_layer == DEFT_VERBS_LINK_LAYER_ETHERNET ||
              (port.flags & DEFT_VERBS_PORT_GRH_REQUIRED) != 0;
    if (library.query_gid(context().get(), static_cast<std::uint8_t>(options_.port),
                          options_.gid_index, &own_.gid) != 0) {
        problem = context().device() + ": no GID " + std::to_string(options_.gid_index);
        return false;
    }
    return true;
}

VerbsQueuePair::~VerbsQueuePair() {
    if (ForkGuard::process().in_child()) {
        return;  // the parent's
    }
    const VerbsLibrary& library = context().library();
    if (qp_ != nullptr) {
        context().look();  // an event of it that is not taken back would hold up ibv_destroy_qp
        context().forget(qp_);
        if (const int error = library.destroy_qp(qp_); error != 0) {
            DEFT_WARN("%s: ibv_destroy_qp: %s", context().device().c_str(), std::strerror(error));
        }
    }
    if (cq_ != nullptr) {
        if (const int error = library.destroy_cq(cq_); error != 0) {
            DEFT_WARN("%s: ibv_destroy_cq: %s", context().device().c_str(), std::strerror(error));
        }
    }
}

int VerbsQueuePair::to_init() {
    deft_verbs_qp_attr_t attributes{};
    attributes.qp_state = DEFT_VERBS_QPS_INIT;
    attributes.pkey_index = options_.pkey_index;
    attributes.port_num = static_cast<std::uint8_t>(options_.port);
    attributes.qp_access_flags =
        options_.readable ? DEFT_VERBS_ACCESS_REMOTE_READ : DEFT_VERBS_ACCESS_REMOTE_WRITE;
    return context().library().modify_qp(qp_, &attributes,
                                         DEFT_VERBS_QP_STATE | DEFT_VERBS_QP_PKEY_INDEX |
                                             DEFT_VERBS_QP_PORT | DEFT_VERBS_QP_ACCESS_FLAGS);
}

int VerbsQueuePair::to_receive(const VerbsAddress& peer) {
    deft_verbs_qp_attr_t attributes{};
    attributes.qp_state = DEFT_VERBS_QPS_RTR;
    attributes.path_mtu = mtu_;
    attributes.dest_qp_num = peer.qp;
    attributes.rq_psn = kFirstPacket;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = kShortestWait;
    deft_verbs_ah_attr_t& to = attributes.ah_attr;
    to.port_num = static_cast<std::uint8_t>(options_.port);
    to.sl = options_.service_level;
    to.dlid = peer.lid;
    if (global_) {
        to.is_global = 1;
        to.grh.dgid = peer.gid;
        to.grh.sgid_index = static_cast<std::uint8_t>(options_.gid_index);
        to.grh.hop_limit = kFarthest;
        to.grh.traffic_class = options_.traffic_class;
    }
    return context().library().modify_qp(
        qp_, &attributes,
        DEFT_VERBS_QP_STATE | DEFT_VERBS_QP_AV | DEFT_VERBS_QP_PATH_MTU | DEFT_VERBS_QP_DEST_QPN |
            DEFT_VERBS_QP_RQ_PSN | DEFT_VERBS_QP_MAX_DEST_RD_ATOMIC | DEFT_VERBS_QP_MIN_RNR_TIMER);
}

int VerbsQueuePair::to_send() {
    deft_verbs_qp_attr_t attributes{};
    attributes.qp_state = DEFT_VERBS_QPS_RTS;
    attributes.timeout = options_.timeout;
    attributes.retry_cnt = options_.retries;
    attributes.rnr_retry = kForEver;
    attributes.sq_psn = kFirstPacket;
    attributes.max_rd_atomic = 1;
    return context().library().modify_qp(qp_, &attributes,
                                         DEFT_VERBS_QP_STATE | DEFT_VERBS_QP_TIMEOUT |
                                             DEFT_VERBS_QP_RETRY_CNT | DEFT_VERBS_QP_RNR_RETRY |
                                             DEFT_VERBS_QP_SQ_PSN | DEFT_VERBS_QP_MAX_QP_RD_ATOMIC);
}

void VerbsQueuePair::fail(const char* what, int error) {
    why_ = context().device() + ": " + what + ": " + std::strerror(error);
    State connecting = State::Connecting;
    state_.compare_exchange_strong(connecting, State::Failed, std::memory_order_release);
}

void VerbsQueuePair::connect(const VerbsAddress& peer) {
    state_.store(State::Connecting, std::memory_order_relaxed);
    if (peer.layer != own_.layer) {
        fail("the peer's port is of another link layer", EPROTONOSUPPORT);
        return;
    }
    mtu_ = std::min(mtu_, int{peer.mtu});
    BlockingCalls& calls = calls_that_connect(context().device());
    if (!calls.run([self = shared_from_this(), peer] { self->connect_now(peer); })) {
        fail("no thread to connect on", EAGAIN);
    }
}

// Whoever calls end() meanwhile wins: a queue pair does not come back from the error state.
void VerbsQueuePair::connect_now(const VerbsAddress& peer) {
    {
        const MutexLock lock(connecting_);
        if (state() == State::Connecting) {
            connect_locked(peer);
        }
    }
    // Pairs with end_now(): one of the two sees what the other has done.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (state() == State::Ending) {
        end_now();
    }
}

// Before the step to RTR.
int VerbsQueuePair::agree(const VerbsAddress& peer) {
    deft_verbs_ece_t ece = peer.ece;
    return agrees(peer) ? context().library().set_ece(qp_, &ece) : 0;
}

void VerbsQueuePair::connect_locked(const VerbsAddress& peer) {
    if (const int error = agree(peer); error != 0) {
        fail("the peer's extensions (ibv_set_ece)", error);
        return;
    }
    if (const int error = to_receive(peer); error != 0) {
        fail("queue pair to RTR (the peer's address does not answer?)", error);
        return;
    }
    if (agrees(peer) && context().library().query_ece(qp_, &own_.ece) != 0) {
        own_.ece = {};
    }
    if (const int error = to_send(); error != 0) {
        fail("queue pair to RTS", error);
        return;
    }
    State connecting = State::Connecting;
    state_.compare_exchange_strong(connecting, State::Ready, std::memory_order_release);
}

void VerbsQueuePair::end() {
    const State before = state_.load(std::memory_order_acquire);
    if (before == State::Ending || before == State::Ended || before == State::Gone) {
        return;
    }
    begin_end();
}

void VerbsQueuePair::destroy() {
    if (state() == State::Ended) {
        hopeless_.store(true, std::memory_order_relaxed);
        begin_end();
    }
}

void VerbsQueuePair::begin_end() {
    state_.store(State::Ending, std::memory_order_relaxed);
    BlockingCalls& calls = calls_that_end(context().device());
    if (!calls.run([self = shared_from_this()] { self->end_now(); }) &&
        !ForkGuard::process().in_child()) {
        end_now();
    }
}

// Never between two steps of connect_now(), which may take a second each, and does not hold up the
// ends of others here: it calls this then. The kernel lets them wait for each other as well.
void VerbsQueuePair::end_now() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!connecting_.try_lock()) {
        return;
    }
    end_locked();
    connecting_.unlock();
}

void VerbsQueuePair::end_locked() {
    if (state() != State::Ending) {
        return;
    }
    deft_verbs_qp_attr_t attributes{};
    attributes.qp_state = DEFT_VERBS_QPS_ERR;
    const VerbsLibrary& library = context().library();
    if (!hopeless_.load(std::memory_order_relaxed) &&
        library.modify_qp(qp_, &attributes, DEFT_VERBS_QP_STATE) == 0) {
        state_.store(State::Ended, std::memory_order_release);
        return;
    }
    // The device does not hear any more. One that is destroyed touches no memory either.
    context().look();
    context().forget(qp_);
    const int error = library.destroy_qp(qp_);
    // Nor does that of a card which is gone: the kernel has taken it off the bus.
    if (error != 0 && !(error == EIO && context().fatal())) {
        DEFT_WARN("%s: a queue pair can neither be ended nor destroyed: %s",
                  context().device().c_str(), std::strerror(error));
        return;  // never ended: nobody may have the memory
    }
    qp_ = nullptr;
    state_.store(State::Gone, std::memory_order_release);
}

int VerbsQueuePair::post(deft_verbs_send_wr_t& first) {
    deft_verbs_send_wr_t* bad = nullptr;
    return qp_->context->ops.post_send(qp_, &first, &bad);
}

int VerbsQueuePair::post(deft_verbs_recv_wr_t& first) {
    deft_verbs_recv_wr_t* bad = nullptr;
    return qp_->context->ops.post_recv(qp_, &first, &bad);
}

int VerbsQueuePair::poll(std::span<deft_verbs_wc_t> out) {
    return context().get()->ops.poll_cq(cq_, static_cast<int>(out.size()), out.data());
}

}  // namespace deft::net
