// SPDX-License-Identifier: Apache-2.0
// Which paths are worth using: one that shares a bottleneck with another adds nothing, or takes
// away. Pure: fed with what was delivered, asked which paths to leave out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/core/clock.h"
#include "plugin/core/probe_token.h"

namespace deft::net {

// Now and then, under load, a path is left out for a tenth of a second. If hardly any of what it
// carried is missed in the total, twice, it is left out for seconds, later minutes, and tried
// again. Over time the trials of a useful path cost less than a hundredth of its part. A path that
// is left out stays connected, and all are used again once any is lost or found. Only time under
// load counts: a job that sends in bursts is judged over several of them.
class PathProber {
public:
    static constexpr std::size_t kMaxPaths = 16;

    PathProber() = default;
    // `token`: of the connections that share these links, outlives this; NULL: there is no other.
    explicit PathProber(ProbeToken* token) : token_(token) {}
    ~PathProber() { end(); }
    PathProber(const PathProber&) = delete;
    PathProber& operator=(const PathProber&) = delete;

    struct Sample {
        bool up = false;
        std::uint64_t delivered = 0;  // bytes acknowledged since the connection was made
        Nanos latency = 0;
    };
    // Called about every millisecond while the connection is driven; `backlog`: bytes of messages
    // that may be sent and are not delivered. True if out() has changed.
    bool tick(Nanos now, std::span<const Sample> paths, std::uint64_t backlog);
    // The path is not to be given chunks, as long as another one is up.
    bool out(std::size_t path) const { return ((dropped_ | tried_) >> path & 1) != 0; }
    // It was found useless and stays out until it is tried again.
    bool dropped(std::size_t path) const { return (dropped_ >> path & 1) != 0; }
    std::uint64_t drops() const { return drops_; }

private:
    enum class Phase { Watch, Joining, Before, Leaving, Without, Returning, After };
    using Mask = std::uint32_t;

    bool begin(Nanos now);
    void end();
    void enter(Phase phase, Nanos now);
    void step(Nanos now, std::span<const Sample> paths);
    void watch(Nanos now, std::span<const Sample> paths);
    void take_out(Nanos now);
    void next_phase(Nanos now);
    bool choose(std::span<const Sample> paths);
    void judge(Nanos now);
    void give_up(Nanos wait);
    void leave_out(Nanos now);
    Nanos undecided();

    ProbeToken* token_ = nullptr;
    Mask up_ = 0;
    Mask dropped_ = 0;
    Mask tested_ = 0;  // found useful once
    Mask tried_ = 0;   // out for the moment of a trial
    Phase phase_ = Phase::Watch;
    std::size_t candidate_ = 0;
    int useless_rounds_ = 0;
    bool retrying_ = false;  // the candidate had been dropped before
    Nanos last_tick_ = 0;
    bool loaded_ = false;    // at the last tick
    Nanos busy_ = 0;         // under load, since the last trial
    Nanos wait_ = 0;         // so long until the next
    Nanos useful_wait_ = 0;  // grows while trials find nothing
    Nanos unsure_wait_ = 0;  // grows while they cannot tell
    Nanos settle_ = 0;
    Nanos window_ = 0;  // by the rate when the last trial began
    Nanos latency_ = 0;
    Nanos phase_start_ = 0;
    Nanos out_since_ = 0;
    Nanos retry_start_ = 0;
    // Under load, in this phase: time, and bytes delivered by all and by the candidate.
    Nanos phase_loaded_ = 0;
    std::uint64_t phase_all_ = 0;
    std::uint64_t phase_candidate_ = 0;
    Nanos ramp_ = 0;              // since the load began
    std::uint64_t last_all_ = 0;  // as of the last tick
    std::uint64_t last_candidate_ = 0;
    double share_ = 0;   // of the candidate, while it was used
    double before_ = 0;  // totals, bytes per second
    double without_ = 0;
    double after_ = 0;
    std::array<std::uint64_t, kMaxPaths> seen_{};  // delivered, when the last trial ended
    std::array<Nanos, kMaxPaths> retry_at_{};
    std::array<Nanos, kMaxPaths> back_off_{};
    std::array<double, kMaxPaths> load_{};  // backlog when it was dropped
    double load_now_ = 0;
    std::uint64_t drops_ = 0;
};

}  // namespace deft::net
