// SPDX-License-Identifier: Apache-2.0
// Paths that write into granted memory, with what queue pairs were seen to do: flushed writes that
// land later, acknowledgements that are lost, memory read again, bytes out of order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/core/path.h"
#include "plugin/core/region.h"
#include "tests/component/plugin/core/fake_link.h"

namespace deft::net::testing {

inline constexpr Capabilities kGrantedCapabilities{true, 4096, true, true, 512 * 1024};

class FakeDomain final : public Domain {
public:
    explicit FakeDomain(const bool* refuses) : refuses_(refuses) {}
    bool opens(std::uint32_t key, std::uint64_t address, std::uint64_t size) const {
        const auto found = memory_->find(key);
        return found != memory_->end() && address >= found->second.first &&
               address + size <= found->second.first + found->second.second;
    }
    std::size_t live() const { return memory_->size(); }
    std::size_t made() const { return next_ - 1; }

protected:
    using Keys = std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>>;
    struct Entry final : Registration {
        ~Entry() override { memory->erase(local_key); }
        std::shared_ptr<Keys> memory;
    };
    std::unique_ptr<Registration> enter(const Memory& memory, std::string& problem) override {
        if (*refuses_) {
            problem = "out of memory";
            return nullptr;
        }
        auto entry = std::make_unique<Entry>();
        entry->memory = memory_;
        entry->local_key = entry->remote_key = next_;
        (*memory_)[next_++] = {reinterpret_cast<std::uintptr_t>(memory.data), memory.size};
        return entry;
    }

private:
    const bool* refuses_;
    std::shared_ptr<Keys> memory_ = std::make_shared<Keys>();
    std::uint32_t next_ = 1;
};

// Both ends of a reliable connection, the NICs between them, and what is on the way.
class FakeQueuePair {
public:
    FakeQueuePair(FakeLink& link, const Nanos& now, FakeDomain& from, FakeDomain& to)
        : link_(link), now_(now), from_(from), to_(to) {}

    struct Work {
        Chunk chunk;  // its grant and region are not valid any more
        Grant grant;
        std::vector<std::byte> copy;  // of an inline message; else what was read when it came
        Nanos arrives = 0;
        Nanos due = 0;          // when it was to arrive at first
        bool begun = false;     // some of it is in memory
        bool executed = false;  // all of it, and the receiver's completion
        Nanos acknowledged_at = 0;
    };
    struct Completion {
        Chunk chunk;
        std::vector<std::byte> copy;
    };
    struct Back {
        Control control;
        Grant grant;
        bool grants = false;
        Nanos arrives = 0;
    };
    struct Ask {
        std::uint16_t path;
        std::uint32_t incarnation;
        Nanos arrives;
    };

    bool dead() const { return link_.black_hole || !link_.carrier; }
    Nanos now() const { return now_; }
    FakeLink& link() { return link_; }
    FakeDomain& from() { return from_; }

    bool post(const Chunk& chunk) {
        FakeLink& pipe = link_.pipe();
        const double backlog = static_cast<double>(std::max<Nanos>(pipe.busy_until - now_, 0)) *
                               pipe.bytes_per_second / 1e9;
        if (backlog > static_cast<double>(link_.socket_buffer) || work_.size() >= 64) {
            return false;
        }
        pipe.busy_until = std::max(pipe.busy_until, now_) +
                          static_cast<Nanos>(static_cast<double>(chunk.length + 48) * 1e9 /
                                             pipe.rate_for(link_, now_));
        progress_at_ = work_.empty() ? now_ : progress_at_;
        ++link_.pieces;
        Work work;
        work.chunk = chunk;
        work.arrives = work.due = pipe.busy_until + link_.latency;
        if (chunk.grant != nullptr) {
            work.grant = *chunk.grant;
            const Registration* const own = chunk.region->in(&from_);
            EXPECT_TRUE(own != nullptr &&
                        from_.opens(own->local_key, reinterpret_cast<std::uintptr_t>(chunk.data),
                                    chunk.length))
                << "memory that is not registered";
        } else {
            EXPECT_LE(chunk.total, kGrantedCapabilities.inline_bytes);
            work.copy.assign(chunk.data, chunk.data + chunk.length);
        }
        work_.push_back(std::move(work));
        return true;
    }

    // The NICs of both ends.
    void work_on() {
        land_late();
        if (error[0]) {
            return;
        }
        for (Work& work : work_) {
            if (!work.executed && !deliver(work)) {
                break;
            }
        }
        while (!work_.empty() && work_.front().executed && work_.front().acknowledged_at <= now_) {
            Work& work = work_.front();
            if (dead() || link_.acks_lost) {
                work.acknowledged_at = now_ + link_.repeats;  // sent again, and read for that
                read_again(work);
                break;
            }
            read_again(work);
            ++acknowledged;
            progress_at_ = now_;
            work_.pop_front();
        }
        if (!work_.empty() &&
            now_ - std::max(progress_at_, work_.front().due) > link_.retries_for) {
            fail_sender();
        }
    }
    // The sender's queue pair to its error state: what the network has of it is on its way still.
    void fail_sender() {
        error[0] = true;
        for (Work& work : work_) {
            if (!work.executed && link_.late > 0) {
                if (!inlined(work)) {
                    work.copy.assign(work.chunk.data, work.chunk.data + work.chunk.length);
                }
                work.arrives = now_ + link_.late;
                late_.push_back(std::move(work));
            }
        }
        work_.clear();
    }

    bool error[2] = {false, false};      // the queue pair of the sender, of the receiver
    bool closed[2] = {false, false};     // the life line, from there
    std::deque<Completion> completions;  // the receiver's
    std::deque<Back> backward;
    std::deque<Ask> asks;
    std::uint64_t acknowledged = 0;  // the sender's completions
    std::uint64_t landed_late = 0;   // writes after the sender's end
    std::uint64_t kept_out = 0;      // and those that the fence has stopped
    std::uint64_t changed = 0;       // memory that was read again, and was not the same

private:
    // False: this one, and what is behind it, has not come yet.
    bool deliver(Work& work) {
        if (link_.out_of_order && !work.begun && work.arrives - link_.latency <= now_ && !dead() &&
            !error[1]) {
            const std::uint32_t half = work.chunk.length / 2;
            work.begun = true;
            write(work, half, work.chunk.length - half);
        }
        if (work.arrives > now_) {
            return false;
        }
        if (dead() || error[1]) {
            work.arrives = now_ + link_.repeats;
            return false;
        }
        if (!write(work, 0, work.chunk.length)) {
            fail_sender();
            error[1] = true;
            return false;
        }
        work.executed = true;
        work.acknowledged_at = now_ + link_.latency;
        completions.push_back({work.chunk, work.copy});
        if (!inlined(work)) {
            work.copy.assign(work.chunk.data, work.chunk.data + work.chunk.length);
        }
        return true;
    }
    bool inlined(const Work& work) const { return work.grant.key == 0; }
    bool write(const Work& work, std::uint32_t from, std::uint32_t length) {
        if (inlined(work)) {
            return true;
        }
        const std::uint64_t address = work.grant.address + work.chunk.offset;
        if (!to_.opens(work.grant.key, address, work.chunk.length)) {
            return false;
        }
        const std::byte* const data = late_now_ ? work.copy.data() : work.chunk.data;
        std::memcpy(reinterpret_cast<std::byte*>(address) + from, data + from, length);
        return true;
    }
    void read_again(const Work& work) {
        if (!inlined(work) && std::memcmp(work.copy.data(), work.chunk.data, work.copy.size())) {
            ++changed;
        }
    }
    // In order: behind one that has not come nothing is complete.
    void land_late() {
        while (!late_.empty() && late_.front().arrives <= now_) {
            Work work = std::move(late_.front());
            late_.pop_front();
            if (error[1]) {
                ++kept_out;
                continue;
            }
            late_now_ = true;
            const bool opens = write(work, 0, work.chunk.length);
            late_now_ = false;
            error[1] = error[1] || !opens;
            landed_late += opens && !inlined(work) ? 1 : 0;
            if (opens) {
                completions.push_back({work.chunk, work.copy});
            }
        }
    }

    FakeLink& link_;
    const Nanos& now_;
    FakeDomain& from_;
    FakeDomain& to_;
    std::deque<Work> work_;  // posted and not completed at the sender
    std::deque<Work> late_;
    bool late_now_ = false;
    Nanos progress_at_ = 0;
};

class FakeGrantedPath final : public Path {
public:
    FakeGrantedPath(std::shared_ptr<FakeQueuePair> pair, const Domain* domain, bool sender)
        : pair_(std::move(pair)), domain_(domain), end_(sender ? 0 : 1) {}
    ~FakeGrantedPath() override { FakeGrantedPath::close(0); }

    Capabilities capabilities() const override { return kGrantedCapabilities; }
    const Domain* domain() const override { return domain_; }
    Post post(const Chunk& chunk) override {
        EXPECT_NE(chunk.message, kProbe);
        if (loss_ != Loss::None || pair_->error[0]) {
            return Post::Failed;
        }
        return pair_->post(chunk) ? Post::Ok : Post::Again;
    }
    Post send(const Control& control) override { return back({control, {}, false, 0}); }
    Post grant(const Grant& grant) override {
        return pair_->link().grants_lost ? Post::Ok : back({{}, grant, true, 0});
    }
    Post ask_fence(std::uint16_t path, std::uint32_t incarnation) override {
        pair_->asks.push_back({path, incarnation, pair_->now() + pair_->link().latency});
        return Post::Ok;
    }
    Post send_bye() override { return Post::Ok; }
    void abandon(std::uint64_t) override {}
    bool writing() const override { return false; }

    Poll poll(PathEvents& events, bool) override {
        if (loss_ != Loss::None) {
            return Poll::Failed;
        }
        pair_->work_on();
        return end_ == 0 ? poll_sender(events) : poll_receiver(events);
    }
    bool fence(PathEvents& events) override {
        fence_begun_ = fence_begun_ == 0 ? pair_->now() : fence_begun_;
        if (pair_->now() - fence_begun_ < pair_->link().fence_takes) {
            return false;
        }
        pair_->work_on();
        pair_->error[1] = true;
        take_completions(events);
        return true;
    }
    bool retract() override {
        retract_begun_ = retract_begun_ == 0 ? pair_->now() : retract_begun_;
        if (pair_->now() - retract_begun_ < pair_->link().retract_takes) {
            return false;
        }
        if (!pair_->error[0]) {
            pair_->work_on();
            pair_->fail_sender();
        }
        return true;
    }
    void close(Nanos) override {
        if (!pair_->error[end_]) {
            if (end_ == 0) {
                pair_->fail_sender();
            }
            pair_->error[end_] = true;
        }
        pair_->closed[end_] = true;
        loss_ = loss_ == Loss::None ? Loss::Ended : loss_;
    }
    Loss loss() const override { return loss_; }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return "fake granted"; }

private:
    Poll lost(Loss loss, const char* text) {
        loss_ = loss;
        failure_ = text;
        return Poll::Failed;
    }
    Post back(FakeQueuePair::Back frame) {
        if (loss_ != Loss::None) {
            return Post::Failed;
        }
        frame.arrives = pair_->now() + pair_->link().latency;
        pair_->link().told += frame.grants ? 0 : 1;
        pair_->backward.push_back(frame);
        return Post::Ok;
    }
    Poll poll_sender(PathEvents& events) {
        Poll result = Poll::Idle;
        if (pair_->acknowledged != acknowledged_) {
            acknowledged_ = pair_->acknowledged;
            events.acknowledged(acknowledged_);
            result = Poll::Worked;
        }
        while (!pair_->backward.empty() && !pair_->dead() && !pair_->error[0] &&
               pair_->backward.front().arrives <= pair_->now()) {
            const FakeQueuePair::Back frame = pair_->backward.front();
            pair_->backward.pop_front();
            if (frame.grants) {
                events.granted(frame.grant);
            } else {
                events.control(frame.control);
            }
            result = Poll::Worked;
        }
        if (pair_->error[0]) {
            return lost(Loss::TimedOut, "retries exceeded");
        }
        if (pair_->closed[1] && !pair_->dead()) {
            return lost(Loss::Ended, "the peer closed it");
        }
        return result;
    }
    Poll poll_receiver(PathEvents& events) {
        while (!pair_->asks.empty() && !pair_->dead() &&
               pair_->asks.front().arrives <= pair_->now()) {
            events.fence_asked(pair_->asks.front().path, pair_->asks.front().incarnation);
            pair_->asks.pop_front();
        }
        const Poll result = take_completions(events);
        if (result != Poll::Failed && pair_->closed[0] && !pair_->dead()) {
            return lost(Loss::Ended, "the peer closed it");
        }
        return result;
    }
    Poll take_completions(PathEvents& events) {
        Poll result = Poll::Idle;
        while (!pair_->completions.empty()) {
            const FakeQueuePair::Completion completion = std::move(pair_->completions.front());
            pair_->completions.pop_front();
            result = Poll::Worked;
            Chunk chunk = completion.chunk;
            chunk.data = nullptr;
            const bool inlined = chunk.total <= kGrantedCapabilities.inline_bytes;
            std::byte* destination = nullptr;
            const PathEvents::Place place =
                inlined ? events.place(chunk, destination) : events.landed(chunk);
            EXPECT_NE(place, PathEvents::Place::Refuse)
                << "message " << chunk.message << " chunk " << chunk.index;
            if (place == PathEvents::Place::Refuse) {
                return lost(Loss::Protocol, "refused");
            }
            if (inlined) {
                if (place == PathEvents::Place::Store && !completion.copy.empty()) {
                    std::memcpy(destination, completion.copy.data(), completion.copy.size());
                }
                events.arrived(chunk);
            }
        }
        return result;
    }

    std::shared_ptr<FakeQueuePair> pair_;
    const Domain* domain_;
    int end_;
    std::uint64_t acknowledged_ = 0;
    Nanos fence_begun_ = 0;
    Nanos retract_begun_ = 0;
    Loss loss_ = Loss::None;
    std::string failure_;
};

}  // namespace deft::net::testing
