// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/ucx_path.h"

#include <utility>

#include "plugin/core/copy_in_order.h"

namespace deft::net {
namespace {

constexpr std::size_t kAtOnce = 16;  // frames in one poll: other paths get their turn
static_assert(kGrantedFrameBytes == DEFT_UCX_FRAME_BYTES);

}  // namespace

UcxPath::UcxPath(std::shared_ptr<UcxChannel> channel, PathRole role, const std::string& description)
    : module_(channel->module()),
      channel_(std::move(channel)),
      role_(role),
      description_(description),
      heard_(steady_now()) {}

UcxPath::~UcxPath() {
    channel_->end();
}

Post UcxPath::send_frame(const GrantedFrame& frame, const void* data, std::size_t bytes,
                         std::uint32_t key) {
    if (loss_ != Loss::None || ending_) {
        return Post::Failed;
    }
    std::array<std::byte, kGrantedFrameBytes> encoded;
    encode(frame, encoded);
    switch (module_.send(channel_->get(), encoded.data(), data, bytes, key)) {
        case DEFT_UCX_AGAIN:
            return Post::Again;
        case DEFT_UCX_FAILED:
            lose(Loss::Reset, why());
            return Post::Failed;
        case DEFT_UCX_OK:
            break;
    }
    if (sent_ == acknowledged_) {
        heard_ = steady_now();
    }
    chunk_[sent_++ % chunk_.size()] =
        frame.kind == GrantedFrameKind::Carried || frame.kind == GrantedFrameKind::Written;
    return Post::Ok;
}

Post UcxPath::greet() {
    static constexpr std::array<std::byte, kInlineBytes> kFull{};
    return send_frame({.kind = GrantedFrameKind::Greeting}, kFull.data(), kFull.size());
}

Post UcxPath::send(const Control& control) {
    return send_frame({.kind = GrantedFrameKind::Control, .control = control});
}

// The peer learns no address: it says of which message a chunk is, and this end fetches it.
Post UcxPath::grant(const Grant& grant) {
    grants_.put(grant);
    GrantedFrame frame{.kind = GrantedFrameKind::Grant};
    frame.grant.message = grant.message;
    frame.grant.capacity = grant.capacity;
    return send_frame(frame);
}

Post UcxPath::ask_fence(std::uint16_t path, std::uint32_t incarnation) {
    GrantedFrame frame{.kind = GrantedFrameKind::Fence};
    frame.control.path = path;
    frame.control.incarnation = incarnation;
    return send_frame(frame);
}

Post UcxPath::send_bye() {
    return send_frame({.kind = GrantedFrameKind::Bye});
}

Post UcxPath::post(const Chunk& chunk) {
    if (chunk.grant == nullptr) {
        if (chunk.length > kInlineBytes) {
            lose(Loss::Protocol, "a chunk without a grant that is too large to be copied");
            return Post::Failed;
        }
        return send_frame({.kind = GrantedFrameKind::Carried, .chunk = chunk}, chunk.data,
                          chunk.length);
    }
    const Registration* const memory = chunk.region->in(domain());
    if (memory == nullptr) {
        lose(Loss::Protocol, "a chunk of memory that is not registered here");
        return Post::Failed;
    }
    return send_frame({.kind = GrantedFrameKind::Written, .chunk = chunk}, chunk.data, chunk.length,
                      memory->local_key);
}

// The peer decides what it sends: it is checked against what was granted.
std::byte* UcxPath::place_of(const Chunk& chunk) const {
    const Grant* const grant = grants_.find(chunk.message);
    return grant == nullptr || chunk.total > grant->capacity
               ? nullptr
               : reinterpret_cast<std::byte*>(grant->address) + chunk.offset;
}

bool UcxPath::take(const std::byte* bytes, const std::byte* data, std::uint64_t size, bool bulk) {
    GrantedFrame frame;
    if (!decode(std::span<const std::byte, kGrantedFrameBytes>(bytes, kGrantedFrameBytes), frame) ||
        bulk != (frame.kind == GrantedFrameKind::Written)) {
        return false;
    }
    switch (frame.kind) {
        case GrantedFrameKind::Greeting:
            answer_ = role_ == PathRole::Receiver && !greeted_;
            greeted_ = true;
            return true;
        case GrantedFrameKind::Written: {
            std::byte* const place = place_of(frame.chunk);
            if (place == nullptr || size != frame.chunk.length) {
                return false;
            }
            copy_in_order(place, data, size);
            break;
        }
        case GrantedFrameKind::Carried:
            if (size != frame.chunk.length) {
                return false;
            }
            break;
        case GrantedFrameKind::Bye:
            bye_ = true;
            break;
        case GrantedFrameKind::Control:
        case GrantedFrameKind::Grant:
        case GrantedFrameKind::Fence:
            break;
    }
    return events_ != nullptr && hand_over(frame, data, role_, *events_);
}

void UcxPath::answer_greeting() {
    if (answer_ && send_frame({.kind = GrantedFrameKind::Greeting}) != Post::Again) {
        answer_ = false;
    }
}

void UcxPath::await_greeting() {
    if (!greeted_) {
        (void)move(nullptr, 1);
    }
    answer_greeting();
}

Path::Poll UcxPath::move(PathEvents* events, std::size_t most) {
    deft_ucx_sink_t sink{};
    sink.user = this;
    sink.taken = [](void* self, const void* frame, const void* data, std::uint64_t bytes,
                    int bulk) {
        auto& path = *static_cast<UcxPath*>(self);
        const bool good = path.take(static_cast<const std::byte*>(frame),
                                    static_cast<const std::byte*>(data), bytes, bulk != 0);
        if (!good) {
            path.lose(Loss::Protocol, "the peer sent what cannot be");
        }
        return good ? DEFT_UCX_OK : DEFT_UCX_FAILED;
    };
    events_ = events;
    const deft_ucx_result_t result = module_.progress(channel_->get(), &sink, most);
    events_ = nullptr;
    if (ending_) {
        return Poll::Failed;
    }
    if (const std::uint64_t heard = module_.heard(channel_->get()); heard != heard_messages_) {
        heard_messages_ = heard;
        heard_ = steady_now();
    }
    count_acknowledged(events);
    if (result == DEFT_UCX_FAILED) {
        lose(bye_ ? Loss::Ended : Loss::Reset, why());
    }
    return result == DEFT_UCX_OK ? Poll::Worked : Poll::Idle;
}

void UcxPath::count_acknowledged(PathEvents* events) {
    for (const std::uint64_t now = module_.acknowledged(channel_->get()); acknowledged_ < now;
         ++acknowledged_) {
        chunks_ += chunk_[acknowledged_ % chunk_.size()] ? 1 : 0;
    }
    if (told_ != chunks_ && events != nullptr) {
        told_ = chunks_;
        events->acknowledged(chunks_);
    }
}

Path::Poll UcxPath::poll(PathEvents& events, bool /*reading*/) {
    if (ending_) {
        return Poll::Failed;
    }
    // What the peer's host had sent before an end that was seen elsewhere counts.
    const std::size_t rounds = loss_ == Loss::None ? 1 : DEFT_UCX_DEPTH;
    Poll polled = Poll::Worked;
    for (std::size_t i = 0; i < rounds && polled == Poll::Worked; ++i) {
        polled = move(&events, kAtOnce);
    }
    answer_greeting();
    return loss_ != Loss::None ? Poll::Failed : polled;
}

bool UcxPath::drained() const {
    return acknowledged_ == sent_;
}

std::string UcxPath::why() const {
    const char* const why = module_.failure(channel_->get());
    return why == nullptr ? "it failed" : why;
}

// The first cause is kept: all others follow from it.
void UcxPath::lose(Loss loss, const std::string& why) {
    if (loss_ == Loss::None && !ending_) {
        loss_ = loss;
        failure_ = description_ + ": " + why;
    }
}

// True: the channel is gone, and `events` know what came whole before.
bool UcxPath::ended(PathEvents* events) {
    if (!std::exchange(ending_, true)) {
        channel_->end();
    }
    if (!channel_->gone()) {
        return false;
    }
    if (events != nullptr) {
        (void)move(events, DEFT_UCX_DEPTH);
    }
    return true;
}

void UcxPath::close(Nanos limit) {
    const Nanos end = steady_now() + limit;
    while (!drained() && loss_ == Loss::None && !ending_ && steady_now() < end) {
        (void)move(nullptr, 0);
    }
    ending_ = true;
    channel_->end(limit > 0 && loss_ == Loss::None);
}

Nanos UcxPath::silence() const {
    return drained() ? 0 : steady_now() - heard_;
}

void UcxPath::look_after(Nanos now) {
    if (!life_line_.there()) {
        if (drained() && greeted_ && now - heard_ > kSecond) {
            // A frame that means nothing: a peer that does not take it is gone.
            (void)send_frame({.kind = GrantedFrameKind::Greeting});
        }
        return;
    }
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
