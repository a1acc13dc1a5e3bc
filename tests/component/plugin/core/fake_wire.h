// SPDX-License-Identifier: Apache-2.0
// A sender and a receiver joined by fake links of given rate and latency, on a virtual clock: what
// a network does to the core, without a network and without waiting.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/core/receiver.h"
#include "plugin/core/sender.h"
#include "tests/component/plugin/core/fake_granted.h"
#include "tests/component/plugin/core/fake_link.h"

namespace deft::net::testing {

// Both ends of one connection over a link; the state outlives a side that closes.
struct FakeConnection {
    struct Frame {
        Chunk chunk;
        std::vector<std::byte> bytes;
        Nanos arrives;
    };
    struct Back {
        Control control;
        Nanos arrives;
    };
    struct Ask {
        std::uint16_t path;
        std::uint32_t incarnation;
        Nanos arrives;
    };
    FakeLink* link = nullptr;
    const Nanos* now = nullptr;
    std::deque<Frame> forward;
    std::deque<Back> backward;
    std::deque<Ask> asks;  // for fences
    std::uint64_t unsent = 0;
    bool sender_closed = false;
    bool receiver_closed = false;
    bool small = false;  // packets
    bool stuck = false;  // a chunk has vanished: the kernel goes on repeating it
    std::uint64_t delivered_chunks = 0;
};

class FakePath final : public Path {
public:
    FakePath(std::shared_ptr<FakeConnection> wire, bool sender) : wire_(wire), sender_(sender) {}
    ~FakePath() override { FakePath::close(0); }

    Post post(const Chunk& chunk) override {
        if (loss_ != Loss::None) {
            return Post::Failed;
        }
        FakeLink& pipe = wire_->link->pipe();
        const Nanos now = *wire_->now;
        const double backlog = static_cast<double>(std::max<Nanos>(pipe.busy_until - now, 0)) *
                               pipe.bytes_per_second / 1e9;
        if (backlog > static_cast<double>(wire_->link->socket_buffer)) {
            return Post::Again;
        }
        pipe.busy_until = std::max(pipe.busy_until, now) +
                          static_cast<Nanos>(static_cast<double>(chunk.length + 48) * 1e9 /
                                             pipe.rate_for(*wire_->link, now));
        FakeConnection::Frame frame{chunk, {}, pipe.busy_until + wire_->link->latency};
        if (chunk.message != kProbe) {
            frame.bytes.assign(chunk.data, chunk.data + chunk.length);
        }
        wire_->forward.push_back(std::move(frame));
        return Post::Ok;
    }
    Post send(const Control& control) override {
        if (loss_ != Loss::None) {
            return Post::Failed;
        }
        if (control.kind == Control::Kind::Bye && wire_->link->mute) {
            return Post::Again;
        }
        if (control.kind == Control::Kind::PathDown && wire_->link->downs_lost > 0) {
            --wire_->link->downs_lost;
            return Post::Again;
        }
        ++wire_->link->told;
        wire_->backward.push_back({control, *wire_->now + wire_->link->latency});
        return Post::Ok;
    }
    Post ask_fence(std::uint16_t path, std::uint32_t incarnation) override {
        wire_->asks.push_back({path, incarnation, *wire_->now + wire_->link->latency});
        return loss_ == Loss::None ? Post::Ok : Post::Failed;
    }
    Post send_bye() override { return Post::Ok; }
    void abandon(std::uint64_t) override {}
    bool writing() const override { return false; }
    bool drained() const override { return wire_->forward.empty() && !wire_->stuck; }
    void leave_to_kernel() override { wire_->link->left_to_kernel = true; }
    Nanos silence() const override { return wire_->link->silence; }
    void look_after(Nanos) override { ++wire_->link->looked_after; }

    Poll poll(PathEvents& events, bool) override {
        if (loss_ != Loss::None) {
            return Poll::Failed;
        }
        Poll result = Poll::Idle;
        const Nanos now = *wire_->now;
        const bool dead = wire_->link->black_hole || !wire_->link->carrier;
        const bool halted = dead || (sender_ && wire_->stuck);
        halted_since_ = !halted ? 0 : halted_since_ == 0 ? now : halted_since_;
        if (halted && wire_->link->times_out != 0 && now - halted_since_ > wire_->link->times_out) {
            return lost(Loss::TimedOut, "timed out");
        }
        if (sender_) {
            ++wire_->link->looks;
            while (!wire_->backward.empty() && (!dead || wire_->link->one_way) &&
                   wire_->backward.front().arrives <= now) {
                const Control control = wire_->backward.front().control;
                wire_->backward.pop_front();
                events.control(control);
                result = Poll::Worked;
            }
            if (wire_->receiver_closed && !dead && wire_->backward.empty()) {
                return lost(Loss::Ended, "the peer closed it");
            }
            return result;
        }
        while (!wire_->asks.empty() && !dead && wire_->asks.front().arrives <= now) {
            events.fence_asked(wire_->asks.front().path, wire_->asks.front().incarnation);
            wire_->asks.pop_front();
        }
        while (!wire_->forward.empty() && !dead && wire_->forward.front().arrives <= now) {
            const bool passes = wire_->small && wire_->link->small_helps;
            const std::uint32_t narrow = passes ? 0 : wire_->link->narrow;
            wire_->stuck =
                wire_->stuck || (narrow != 0 && wire_->forward.front().chunk.length > narrow);
            if (wire_->stuck) {
                return result;
            }
            const FakeConnection::Frame frame = std::move(wire_->forward.front());
            wire_->forward.pop_front();
            std::byte* destination = nullptr;
            const PathEvents::Place place = events.place(frame.chunk, destination);
            if (place == PathEvents::Place::Refuse) {
                return lost(Loss::Protocol, "refused");
            }
            if (place == PathEvents::Place::Overtaken) {  // frames come whole: nothing is begun
                return lost(Loss::TimedOut, "overtaken");
            }
            if (place == PathEvents::Place::Store && !frame.bytes.empty()) {
                std::memcpy(destination, frame.bytes.data(), frame.bytes.size());
            }
            ++wire_->delivered_chunks;
            events.arrived(frame.chunk);
            result = Poll::Worked;
        }
        if (wire_->sender_closed && !dead && wire_->forward.empty() && !wire_->stuck) {
            return lost(Loss::Ended, "the peer closed it");
        }
        return result;
    }
    void close(Nanos limit) override {
        (sender_ ? wire_->sender_closed : wire_->receiver_closed) = true;
        if (sender_ && limit == 0) {
            wire_->forward.clear();  // a hard close drops what was not delivered
            wire_->stuck = false;    // and a reset is a small packet
        }
        loss_ = loss_ == Loss::None ? Loss::Ended : loss_;
    }
    bool retract() override {
        close(0);
        return true;
    }
    Loss loss() const override { return loss_; }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return "fake"; }

private:
    Poll lost(Loss loss, const char* text) {
        loss_ = loss;
        failure_ = text;
        return Poll::Failed;
    }
    std::shared_ptr<FakeConnection> wire_;
    bool sender_;
    Nanos halted_since_ = 0;
    Loss loss_ = Loss::None;
    std::string failure_;
};

// One connection over some fake links.
class FakeWire {
public:
    explicit FakeWire(std::vector<FakeLink> fakes, Nanos link_timeout = 30 * kSecond)
        : links(std::move(fakes)), ringing_(links.size()) {
        static int wires = 0;
        ++wires;
        for (std::size_t i = 0; i < links.size(); ++i) {
            counters.push_back(std::make_unique<LinkCounters>());
            domains.push_back({std::make_shared<FakeDomain>(&links[i].no_memory[0]),
                               std::make_shared<FakeDomain>(&links[i].no_memory[1])});
        }
        std::vector<std::unique_ptr<Dialer>> dialers;
        for (std::size_t i = 0; i < links.size(); ++i) {
            dialers.push_back(std::make_unique<FakeDialer>(
                *this, i, "fake " + std::to_string(wires) + "." + std::to_string(i)));
        }
        SenderOptions sender_options;
        sender_options.link_timeout = link_timeout;
        std::snprintf(sender_options.peer, sizeof(sender_options.peer), "receiver %d", wires);
        ReceiverOptions receiver_options;
        receiver_options.link_timeout = link_timeout;
        std::snprintf(receiver_options.peer, sizeof(receiver_options.peer), "sender %d", wires);
        sender = std::make_unique<Sender>(sender_options, std::move(dialers), now);
        receiver = std::make_unique<Receiver>(receiver_options, links.size(),
                                              std::make_unique<FakePathSource>(*this));
    }
    ~FakeWire() {
        sender.reset();
        receiver.reset();
    }

    // Lets the NICs work, those of paths that are gone, too: what is late lands.
    void nics() {
        for (auto& pair : pairs) {
            pair->work_on();
        }
    }

    bool establish() {
        for (int i = 0; i < 200000; ++i, now += 10 * kMicrosecond) {
            const auto ready = sender->establish(now);
            const bool open = receiver->establish(now);
            if (ready == Sender::Ready::Yes && open) {
                return true;
            }
        }
        return false;
    }

    Nanos now = kSecond;
    std::vector<FakeLink> links;
    std::vector<std::unique_ptr<LinkCounters>> counters;
    std::vector<std::array<std::shared_ptr<FakeDomain>, 2>> domains;  // of sender and receiver
    std::vector<std::shared_ptr<FakeQueuePair>> pairs;                // there ever were
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    bool receiver_listens = true;
    std::optional<Word> sender_says;  // to a receiver that asks; nothing: the truth

private:
    struct Ring {
        std::shared_ptr<FakeConnection> wire;
        std::shared_ptr<FakeQueuePair> pair;  // of a granted link
        std::uint32_t incarnation = 0;
        Nanos rings_at = 0;
        bool answered = false;
        Control state;
        Nanos answer_at = 0;
    };

    class FakeDialer final : public Dialer {
    public:
        FakeDialer(FakeWire& wire, std::size_t index, std::string name)
            : fake_(wire), index_(index), name_(std::move(name)) {}
        void start(std::uint32_t incarnation, Nanos now) override {
            cancel();
            Ring& ring = fake_.ringing_[index_];
            ring.wire = std::make_shared<FakeConnection>();
            ring.wire->link = &fake_.links[index_];
            ring.wire->now = &fake_.now;
            ring.wire->small = small_;
            if (link().granted) {
                ring.pair = std::make_shared<FakeQueuePair>(
                    link(), fake_.now, *fake_.domains[index_][0], *fake_.domains[index_][1]);
                fake_.pairs.push_back(ring.pair);
            }
            ring.incarnation = incarnation;
            ring.rings_at = now + link().latency;
            started_ = now;
            ++link().attempts;
            wrong_ = link().half_wrong && failures_++ % 2 == 1;
            ring.rings_at += wrong_ ? 1000 * kSecond : 0;
        }
        Result poll(Nanos now, Connected& connected) override {
            Ring& ring = fake_.ringing_[index_];
            const bool dead = link().black_hole || !link().carrier;
            if (link().stranger) {
                return over(*link().stranger);
            }
            if (!fake_.receiver_listens && !dead) {
                return over(Result::Refused);
            }
            if ((!fake_.receiver || fake_.receiver->failure()) && !dead) {
                return over(Result::Closed);
            }
            if (!link().carrier && !link().hangs) {
                return over(Result::Failed);
            }
            if (now - started_ > kConnectLimit && !reached(now)) {
                return over(Result::Silent);
            }
            if (wrong_) {
                return Result::Pending;
            }
            while (dead && !ring.answered && ring.rings_at <= now) {
                ring.rings_at += kSecond;  // lost; the kernel repeats it
            }
            if (dead || !ring.answered || ring.answer_at > now) {
                return Result::Pending;
            }
            if (ring.pair) {
                connected.path = std::make_unique<FakeGrantedPath>(
                    ring.pair, fake_.domains[index_][0].get(), true);
            } else {
                connected.path = std::make_unique<FakePath>(ring.wire, true);
            }
            connected.completed = ring.state.completed;
            connected.posted = ring.state.posted;
            connected.speed_mbps = link().nominal_mbps;
            connected.round_trip = 2 * link().latency;
            ++link().connections;
            link().small = small_;
            failures_ = 0;
            ring = Ring{};
            return Result::Connected;
        }
        void cancel() override {
            Ring& ring = fake_.ringing_[index_];
            if (ring.wire) {
                ring.wire->sender_closed = true;  // a reset, to who has let it in
            }
            if (ring.pair) {
                ring.pair->closed[0] = true;
            }
            ring = Ring{};
        }
        std::uint32_t gives_way_to() const override { return fake_.links[index_].gives_way_to; }
        bool reserve() const override { return fake_.links[index_].reserve; }
        Capabilities capabilities() const override {
            return fake_.links[index_].granted ? kGrantedCapabilities : Capabilities{};
        }
        std::shared_ptr<Domain> domain() const override {
            return fake_.links[index_].granted ? fake_.domains[index_][0] : nullptr;
        }
        void keep_small(bool small) override { small_ = small; }
        Trial try_full_size(Nanos now) override {
            trial_began_ = trial_began_ == 0 ? now : trial_began_;
            const bool vanishes = link().narrow != 0 || link().black_hole || !link().carrier;
            if (now - trial_began_ < (vanishes ? 2 * kSecond : 3 * link().latency)) {
                return Trial::Pending;
            }
            trial_began_ = 0;
            ++link().trials;
            return vanishes ? Trial::Swallowed : Trial::Passed;
        }
        bool reached(Nanos now) const override {
            const Ring& ring = fake_.ringing_[index_];
            const FakeLink& link = fake_.links[index_];
            return ring.wire && ring.rings_at + 300 * kMillisecond <= now && link.carrier &&
                   !link.black_hole && fake_.receiver_listens;
        }
        Carrier carrier() const override { return fake_.links[index_].observe(false); }
        const char* failure() const override { return "fake failure"; }
        const char* describe() const override { return name_.c_str(); }
        LinkCounters& counters() override { return *fake_.counters[index_]; }

    private:
        static constexpr Nanos kConnectLimit = 1200 * kMillisecond;
        FakeLink& link() { return fake_.links[index_]; }
        Result over(Result result) {
            fake_.ringing_[index_] = Ring{};
            return result;
        }
        FakeWire& fake_;
        std::size_t index_;
        std::string name_;
        Nanos started_ = 0;
        int failures_ = 0;  // attempts since the last connection
        bool wrong_ = false;
        bool small_ = false;
        Nanos trial_began_ = 0;
    };

    class FakePathSource final : public PathSource {
    public:
        explicit FakePathSource(FakeWire& wire) : fake_(wire) {}
        bool next(Nanos now, const Control& state, Admitted& admitted) override {
            for (std::size_t i = 0; i < fake_.links.size(); ++i) {
                Ring& ring = fake_.ringing_[i];
                const FakeLink& link = fake_.links[i];
                if (!ring.wire || ring.answered || ring.rings_at > now || link.black_hole ||
                    !link.carrier || link.accepts_at > now) {
                    continue;
                }
                ring.answered = true;
                ring.state = state;
                ring.answer_at = now + link.latency;
                if (ring.pair) {
                    admitted.path = std::make_unique<FakeGrantedPath>(
                        ring.pair, fake_.domains[i][1].get(), false);
                } else {
                    admitted.path = std::make_unique<FakePath>(ring.wire, false);
                }
                admitted.index = static_cast<std::uint16_t>(i);
                admitted.incarnation = ring.incarnation;
                admitted.counters = &receiver_counters_;
                return true;
            }
            return false;
        }
        Carrier carrier(std::size_t path) const override { return fake_.links[path].observe(true); }
        std::vector<std::shared_ptr<Domain>> domains() const override {
            std::vector<std::shared_ptr<Domain>> all;
            for (std::size_t i = 0; i < fake_.links.size(); ++i) {
                if (fake_.links[i].granted) {
                    all.push_back(fake_.domains[i][1]);
                }
            }
            return all;
        }
        Word ask(std::size_t path, Nanos) override {
            const FakeLink& link = fake_.links[path];
            if (link.black_hole || !link.carrier) {
                return Word::None;
            }
            const bool closed = !fake_.sender || fake_.sender->failure();
            return fake_.sender_says.value_or(closed ? Word::Closed : Word::Lives);
        }

    private:
        FakeWire& fake_;
        LinkCounters receiver_counters_;
    };

    std::vector<Ring> ringing_;
};

}  // namespace deft::net::testing
