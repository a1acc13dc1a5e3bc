// SPDX-License-Identifier: Apache-2.0
// Which of a sender's paths are worth using: what shows that they carry full-size pieces, and which
// of them are left out.
#include <algorithm>

#include "base/log.h"
#include "plugin/core/sender.h"

namespace deft::net {
namespace {

// Before any path has shown that it carries full-size pieces, for the first to do so.
constexpr Nanos kProve = 250 * kMillisecond;

}  // namespace

// True if this message is to wait for the first path that shows that it carries its like.
bool Sender::proving(const Slot& slot, Nanos now) {
    if (any_proven_ || slot.size <= FullSize::kSmallPacket || slot.message >= posted_) {
        return false;
    }
    send_probes(now);
    return now < prove_until_;
}

// A path that has just been made gets a piece that fills packets before it is trusted with the
// job's. Only while the receiver waits for messages, and so reads what comes.
void Sender::send_probes(Nanos now) {
    Chunk probe;
    probe.message = kProbe;
    probe.length = FullSize::kPiece;
    for (auto& link : links_) {
        const bool due =
            link->state == PathState::Up && !link->full_size.proven() && link->in_flight() == 0;
        if (!due || link->path->post(probe) != Post::Ok) {
            continue;  // one that has failed is found out when it is polled
        }
        link->flights[link->next_flight++ % kFlights] = {kProbe, 1, probe.length, now, kNever};
        link->rate.posted(probe.length, now);
        link->full_size.posted(probe.length);
        link->busy_since = link->last_progress = now;
        prove_until_ = prove_until_ == 0 ? now + kProve : prove_until_;
    }
}

// Keeps what is no gain next to much faster links for the time without those.
void Sender::stand_by(Nanos now) {
    Standby::Sample sample;
    for (const auto& link : links_) {
        sample.sum += sound(*link) && !left_out(*link) ? link->rate.bytes_per_second() : 0;
        sample.all += link->delivered;
    }
    for (const auto& link : links_) {
        if (link->state != PathState::Up) {
            link->standby.away();
            continue;
        }
        sample.rate = link->rate.bytes_per_second();
        sample.delivered = link->delivered;
        if (link->standby.tick(sample, now)) {
            DEFT_INFO("path %s of %s is %s", link->dialer->describe(), options_.name,
                      link->standby.out() ? "much slower than the others together: kept for their "
                                            "failure"
                                          : "tried again");
            count_usable();
        }
    }
}

// Leaves out paths that add nothing to the others.
void Sender::try_paths(Nanos now) {
    std::array<PathProber::Sample, PathProber::kMaxPaths> samples;
    const std::size_t count = std::min(links_.size(), samples.size());
    for (std::size_t i = 0; i < count; ++i) {
        const PathSlot& link = *links_[i];
        samples[i] = {sound(link) && !link.standby.out(), link.delivered, link.rate.latency()};
    }
    // What waits for the receiver's credit would come no sooner over more paths: there the peer
    // sets the pace, for instance by what it sends itself in a ring.
    std::uint64_t backlog = 0;
    for (std::uint64_t message = oldest_; message < next_message_ && may_send(this->slot(message));
         ++message) {
        backlog += slot(message).delivered ? 0 : slot(message).size;
    }
    const std::uint64_t before = prober_.drops();
    if (!prober_.tick(now, std::span(samples.data(), count), backlog)) {
        return;
    }
    count_usable();
    if (prober_.drops() != before) {
        for (const auto& link : links_) {
            if (prober_.dropped(link->index)) {
                DEFT_INFO("path %s of %s adds nothing to the others: not used for a while",
                          link->dialer->describe(), options_.name);
            }
        }
    }
}

}  // namespace deft::net
