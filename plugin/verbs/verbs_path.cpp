// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/verbs_path.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "plugin/core/blocking_calls.h"

namespace deft::net {
namespace {

// Work requests are named by their slot; one of another kind has a bit more.
constexpr std::uint64_t kReceive = std::uint64_t{1} << 32;
constexpr std::uint64_t kWrite = std::uint64_t{1} << 33;
constexpr std::size_t kAtOnce = 16;      // completions in one poll: other paths get their turn
constexpr std::size_t kMostWrites = 16;  // of one chunk
constexpr std::size_t kLargestPacket = 4096;
constexpr std::size_t kLine = 64;
constexpr Nanos kFlush = kSecond;  // that takes milliseconds
// Of a time in which nobody looked no more than this counts: the whole process was stopped.
constexpr Nanos kStopped = 10 * kMillisecond;
static_assert(VerbsPath::kInlineBytes + kGrantedFrameBytes >= kLargestPacket);

constexpr std::size_t in_lines(std::size_t bytes) {
    return (bytes + kLine - 1) / kLine * kLine;
}

const char* text_of(int status) {
    switch (status) {
        case DEFT_VERBS_WC_LOC_LEN_ERR:
            return "a message was longer than its buffer";
        case DEFT_VERBS_WC_LOC_QP_OP_ERR:
            return "the card could not carry out a request of ours";
        case DEFT_VERBS_WC_LOC_PROT_ERR:
            return "memory of ours is not registered";
        case DEFT_VERBS_WC_WR_FLUSH_ERR:
            return "the queue pair has ended";
        case DEFT_VERBS_WC_REM_INV_REQ_ERR:
            return "the peer's card refused a request as invalid";
        case DEFT_VERBS_WC_REM_ACCESS_ERR:
            return "the peer's card refused access to its memory";
        case DEFT_VERBS_WC_REM_OP_ERR:
            return "the peer's card could not carry out a request";
        case DEFT_VERBS_WC_RETRY_EXC_ERR:
            return "the peer's card does not answer";
        case DEFT_VERBS_WC_RNR_RETRY_EXC_ERR:
            return "the peer has no receive request";
        default:
            return "the card reports an error";
    }
}

Path::Loss loss_of(int status) {
    switch (status) {
        case DEFT_VERBS_WC_RETRY_EXC_ERR:
        case DEFT_VERBS_WC_RNR_RETRY_EXC_ERR:
            return Path::Loss::TimedOut;
        case DEFT_VERBS_WC_LOC_LEN_ERR:
        case DEFT_VERBS_WC_REM_INV_REQ_ERR:
        case DEFT_VERBS_WC_REM_ACCESS_ERR:
            return Path::Loss::Protocol;
        default:
            return Path::Loss::Reset;
    }
}

}  // namespace

void VerbsPath::size(VerbsQueuePair::Options& options) {
    options.sends = 2 * kDepth + kMostWrites;
    options.receives = kDepth;
}

std::unique_ptr<VerbsPath> VerbsPath::make(std::shared_ptr<VerbsQueuePair> pair, Role role,
                                           std::string& problem) {
    std::unique_ptr<VerbsPath> made(new VerbsPath(std::move(pair), role));
    return made->prepare(problem) ? std::move(made) : nullptr;
}

VerbsPath::VerbsPath(std::shared_ptr<VerbsQueuePair> pair, Role role)
    : pair_(std::move(pair)),
      role_(role),
      description_(pair_->context().device() + ":" + std::to_string(pair_->options().port) +
                   " QP " + std::to_string(pair_->own().qp)),
      slots_(kDepth),
      heard_(steady_now()) {}

// Memory that the device may still be at goes after the queue pair, and all of it where that may
// take its time.
VerbsPath::~VerbsPath() {
    pair_->end();
    struct Rest {  // destroyed from below
        Pages memory;
        std::unique_ptr<Registration> registration;
        std::shared_ptr<VerbsQueuePair> pair;
    };
    BlockingCalls& calls = calls_that_end(pair_->context().device());
    auto rest = std::make_shared<Rest>();
    rest->memory = std::move(memory_);
    rest->registration = std::move(registration_);
    rest->pair = std::move(pair_);
    calls.run([last = std::move(rest)]() mutable { last.reset(); });
}

std::size_t VerbsPath::send_bytes() const {
    return in_lines(kGrantedFrameBytes + (role_ == Role::Sender ? kInlineBytes : 0));
}

std::size_t VerbsPath::receive_bytes() const {
    return in_lines(kGrantedFrameBytes + (role_ == Role::Receiver ? kInlineBytes : 0));
}

std::byte* VerbsPath::send_slot(std::size_t slot) {
    return memory_.data() + slot * send_bytes();
}

std::byte* VerbsPath::receive_slot(std::size_t slot) {
    return memory_.data() + kDepth * send_bytes() + slot * receive_bytes();
}

bool VerbsPath::prepare(std::string& problem) {
    memory_ = Pages(kDepth * (send_bytes() + receive_bytes()));
    if (memory_.data() == nullptr) {
        problem = "no memory for messages";
        return false;
    }
    registration_ = pair_->domain()->register_own(memory_.data(), memory_.size(), problem);
    if (registration_ == nullptr) {
        return false;
    }
    for (std::size_t slot = 0; slot < kDepth; ++slot) {
        if (!post_receive(slot)) {
            problem = failure_;
            return false;
        }
    }
    return true;
}

bool VerbsPath::post_receive(std::size_t slot) {
    deft_verbs_sge_t piece{reinterpret_cast<std::uint64_t>(receive_slot(slot)),
                           static_cast<std::uint32_t>(receive_bytes()), registration_->local_key};
    deft_verbs_recv_wr_t request{};
    request.wr_id = kReceive | slot;
    request.sg_list = &piece;
    request.num_sge = 1;
    if (const int error = pair_->post(request); error != 0) {
        lose(Loss::Reset, std::string("post a receive request: ") + std::strerror(error));
        return false;
    }
    ++open_receives_;
    return true;
}

bool VerbsPath::room(std::uint32_t requests) const {
    return open_sends_ < kDepth && open_requests_ + requests <= pair_->options().sends;
}

deft_verbs_send_wr_t VerbsPath::request_of(std::size_t bytes, deft_verbs_sge_t& piece) {
    piece = {reinterpret_cast<std::uint64_t>(send_slot(next_slot_)),
             static_cast<std::uint32_t>(bytes), registration_->local_key};
    deft_verbs_send_wr_t request{};
    request.wr_id = next_slot_;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = DEFT_VERBS_WR_SEND;
    request.send_flags = DEFT_VERBS_SEND_SIGNALED;
    return request;
}

Post VerbsPath::post_requests(deft_verbs_send_wr_t& first, std::uint32_t requests, bool chunk) {
    if (const int error = pair_->post(first); error != 0) {
        // Those in front of the one that was refused are posted: the queue pair ends with them.
        lose(Loss::Reset, std::string("post a request: ") + std::strerror(error));
        return Post::Failed;
    }
    if (open_sends_ == 0) {
        heard_ = steady_now();
    }
    slots_[next_slot_] = {requests, chunk};
    next_slot_ = (next_slot_ + 1) % kDepth;
    ++open_sends_;
    open_requests_ += requests;
    return Post::Ok;
}

// A frame, and the `bytes` of its slot that are sent with it.
Post VerbsPath::send_frame(const GrantedFrame& frame, std::size_t bytes) {
    if (loss_ != Loss::None || ending_) {
        return Post::Failed;
    }
    if (!room(1)) {
        return Post::Again;
    }
    encode(frame,
           std::span<std::byte, kGrantedFrameBytes>(send_slot(next_slot_), kGrantedFrameBytes));
    deft_verbs_sge_t piece;
    deft_verbs_send_wr_t request = request_of(bytes, piece);
    return post_requests(request, 1, frame.kind == GrantedFrameKind::Carried);
}

Post VerbsPath::greet() {
    return send_frame({.kind = GrantedFrameKind::Greeting}, pair_->packet_bytes());
}

Post VerbsPath::send(const Control& control) {
    return send_frame({.kind = GrantedFrameKind::Control, .control = control}, kGrantedFrameBytes);
}

Post VerbsPath::grant(const Grant& grant) {
    return send_frame({.kind = GrantedFrameKind::Grant, .grant = grant}, kGrantedFrameBytes);
}

Post VerbsPath::ask_fence(std::uint16_t path, std::uint32_t incarnation) {
    GrantedFrame frame{.kind = GrantedFrameKind::Fence};
    frame.control.path = path;
    frame.control.incarnation = incarnation;
    return send_frame(frame, kGrantedFrameBytes);
}

Post VerbsPath::send_bye() {
    return send_frame({.kind = GrantedFrameKind::Bye}, kGrantedFrameBytes);
}

Post VerbsPath::post(const Chunk& chunk) {
    if (loss_ != Loss::None || ending_) {
        return Post::Failed;
    }
    if (chunk.grant != nullptr) {
        return post_written(chunk, {.kind = GrantedFrameKind::Written, .chunk = chunk});
    }
    if (chunk.length > kInlineBytes) {
        lose(Loss::Protocol, "a chunk without a grant that is too large to be copied");
        return Post::Failed;
    }
    if (!room(1)) {
        return Post::Again;
    }
    if (chunk.length != 0) {
        std::memcpy(send_slot(next_slot_) + kGrantedFrameBytes, chunk.data, chunk.length);
    }
    return send_frame({.kind = GrantedFrameKind::Carried, .chunk = chunk},
                      kGrantedFrameBytes + chunk.length);
}

// Bulk as plain writes, which a network may bring in any order, and then one small operation: its
// completion at the receiver says that all before it is there.
Post VerbsPath::post_written(const Chunk& chunk, const GrantedFrame& frame) {
    const Registration* const memory = chunk.region->in(domain());
    const std::size_t most = pair_->largest_message();
    const std::size_t writes = (chunk.length + most - 1) / most;
    if (memory == nullptr || writes > kMostWrites) {
        lose(Loss::Protocol, memory == nullptr ? "a chunk of memory that is not registered here"
                                               : "a chunk of more writes than a path makes");
        return Post::Failed;
    }
    if (!room(static_cast<std::uint32_t>(writes) + 1)) {
        return Post::Again;
    }
    std::array<deft_verbs_send_wr_t, kMostWrites + 1> requests;
    std::array<deft_verbs_sge_t, kMostWrites + 1> pieces;
    for (std::size_t i = 0; i < writes; ++i) {
        const std::size_t done = i * most;
        pieces[i] = {reinterpret_cast<std::uint64_t>(chunk.data + done),
                     static_cast<std::uint32_t>(std::min(most, chunk.length - done)),
                     memory->local_key};
        requests[i] = {};
        requests[i].wr_id = kWrite | next_slot_;
        requests[i].next = &requests[i + 1];
        requests[i].sg_list = &pieces[i];
        requests[i].num_sge = 1;
        requests[i].opcode = DEFT_VERBS_WR_RDMA_WRITE;
        requests[i].remote_addr = chunk.grant->address + chunk.offset + done;
        requests[i].rkey = chunk.grant->key;
    }
    encode(frame,
           std::span<std::byte, kGrantedFrameBytes>(send_slot(next_slot_), kGrantedFrameBytes));
    requests[writes] = request_of(kGrantedFrameBytes, pieces[writes]);
    return post_requests(requests[0], static_cast<std::uint32_t>(writes) + 1, true);
}

void VerbsPath::answer_greeting() {
    if (answer_ &&
        send_frame({.kind = GrantedFrameKind::Greeting}, kGrantedFrameBytes) != Post::Again) {
        answer_ = false;
    }
}

void VerbsPath::await_greeting() {
    struct Nothing final : PathEvents {
        Place place(const Chunk& /*chunk*/, std::byte*& /*destination*/) override {
            return Place::Refuse;
        }
        void arrived(const Chunk& /*chunk*/) override {}
        void control(const Control& /*control*/) override {}
        void peer_closed() override {}
    } nothing;
    while (!greeted_ && take_completions(&nothing, 1) == Poll::Worked) {
    }
    answer_greeting();
}

Path::Poll VerbsPath::poll(PathEvents& events, bool /*reading*/) {
    const Poll polled = take_completions(&events, kAtOnce);
    answer_greeting();
    if (loss_ != Loss::None) {
        return Poll::Failed;
    }
    return polled;
}

Path::Poll VerbsPath::take_completions(PathEvents* events, std::size_t most) {
    std::array<deft_verbs_wc_t, kAtOnce> completions;
    const int got = pair_->poll(std::span(completions).first(most));
    if (got < 0) {
        lose(Loss::Reset, "the completion queue is lost");
        return Poll::Failed;
    }
    for (int i = 0; i < got; ++i) {
        completed(completions[static_cast<std::size_t>(i)], events);
    }
    if (told_ != acknowledged_ && events != nullptr) {
        told_ = acknowledged_;
        events->acknowledged(acknowledged_);
    }
    return got > 0 ? Poll::Worked : Poll::Idle;
}

// Of a failure wr_id and status alone mean anything (ibv_poll_cq(3)).
void VerbsPath::completed(const deft_verbs_wc_t& completion, PathEvents* events) {
    const bool good = completion.status == DEFT_VERBS_WC_SUCCESS;
    if (good) {
        heard_ = steady_now();
    } else {
        lost_by(completion);
    }
    if ((completion.wr_id & kWrite) != 0) {
        return;  // one that failed: its frame's follows, and has its room
    }
    if ((completion.wr_id & kReceive) == 0) {
        sent(good);
        return;
    }
    --open_receives_;
    if (good && events != nullptr) {
        received(completion.wr_id & ~kReceive, completion.byte_len, *events);
    }
}

// Requests complete in their order.
void VerbsPath::sent(bool good) {
    const Slot& oldest = slots_[(next_slot_ + kDepth - open_sends_) % kDepth];
    --open_sends_;
    open_requests_ -= oldest.requests;
    if (good && oldest.chunk) {
        ++acknowledged_;
    }
}

void VerbsPath::received(std::size_t slot, std::size_t bytes, PathEvents& events) {
    const std::byte* const at = receive_slot(slot);
    GrantedFrame frame;
    const bool good =
        bytes >= kGrantedFrameBytes &&
        decode(std::span<const std::byte, kGrantedFrameBytes>(at, kGrantedFrameBytes), frame) &&
        (frame.kind != GrantedFrameKind::Carried ||
         bytes == kGrantedFrameBytes + frame.chunk.length) &&
        take_frame(frame, at + kGrantedFrameBytes, events);
    if (!good) {
        lose(Loss::Protocol, "the peer sent what cannot be");
    } else if (!ending_ && loss_ == Loss::None) {
        post_receive(slot);
    }
}

// False: the peer breaks the protocol.
bool VerbsPath::take_frame(const GrantedFrame& frame, const std::byte* bytes, PathEvents& events) {
    if (frame.kind == GrantedFrameKind::Greeting) {
        answer_ = role_ == Role::Receiver && !greeted_;
        greeted_ = true;
        return true;
    }
    return hand_over(frame, bytes, role_, events);
}

void VerbsPath::lost_by(const deft_verbs_wc_t& completion) {
    lose(loss_of(completion.status), std::string(text_of(completion.status)) + " (status " +
                                         std::to_string(completion.status) + ", vendor's " +
                                         std::to_string(completion.vendor_err) + ")");
}

// The first cause is kept: all others follow from it.
void VerbsPath::lose(Loss loss, const std::string& why) {
    if (loss_ == Loss::None && !ending_) {
        loss_ = loss;
        failure_ = description_ + ": " + why;
    }
}

// True: the queue pair has ended, and every request of it has come back.
bool VerbsPath::ended(PathEvents* events) {
    if (!ending_) {
        ending_ = true;
        pair_->end();
    }
    const VerbsQueuePair::State state = pair_->state();
    while (take_completions(events, kAtOnce) == Poll::Worked) {
    }
    if (state == VerbsQueuePair::State::Gone) {
        return true;
    }
    if (state != VerbsQueuePair::State::Ended) {
        return false;
    }
    if (open_sends_ == 0 && open_receives_ == 0) {
        return true;
    }
    // A card that is dead, or gone, has nothing against the end of a queue pair, and flushes
    // nothing.
    const Nanos now = steady_now();
    flush_waited_ += flush_seen_ == 0 ? 0 : std::min(now - flush_seen_, kStopped);
    flush_seen_ = now;
    if (flush_waited_ > kFlush) {
        pair_->destroy();
    }
    return false;
}

bool VerbsPath::retract() {
    return ended(nullptr);
}

bool VerbsPath::fence(PathEvents& events) {
    return ended(&events);
}

void VerbsPath::close(Nanos limit) {
    const Nanos end = steady_now() + limit;
    while (!drained() && loss_ == Loss::None && steady_now() < end) {
        take_completions(nullptr, kAtOnce);
    }
    ending_ = true;
    pair_->end();
}

Nanos VerbsPath::silence() const {
    return open_sends_ == 0 ? 0 : steady_now() - heard_;
}

void VerbsPath::look_after(Nanos now) {
    pair_->context().look_soon(now);
    if (pair_->lost()) {
        lose(Loss::Reset, "the card has lost the queue pair (an event says so)");
    }
    if (life_line_.there()) {
        look_at_life_line();
    } else if (open_sends_ == 0 && greeted_ && now - heard_ > kSecond) {
        // A frame that means nothing: a card that does not answer for it is gone.
        (void)send_frame({.kind = GrantedFrameKind::Greeting}, kGrantedFrameBytes);
    }
}

void VerbsPath::look_at_life_line() {
    switch (life_line_.look()) {
        case LifeLine::Word::Nothing:
            break;
        case LifeLine::Word::Ended:
            lose(Loss::Ended, "the peer's process has ended");
            break;
        case LifeLine::Word::Reset:
            lose(Loss::Reset, "the peer's process has ended (its connection was reset)");
            break;
    }
}

}  // namespace deft::net
