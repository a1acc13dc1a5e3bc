// SPDX-License-Identifier: Apache-2.0
// One of the two processes: its place (namespace, environment), its network, its measurements. Side
// 0 sends, receives the peer's figures and makes the results; side 1 is the receiver.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/netperf/control.h"
#include "perf/netperf/options.h"
#include "softdev/net/stream.h"

namespace netperf {

class Side {
public:
    // Enters the namespace and opens the plugin; throws UsageError or DriveError.
    Side(const Options& options, int side, Control* control);
    ~Side();

    nlohmann::json describe();  // of side 0: environment and both networks
    nlohmann::json verify();
    nlohmann::json bandwidth(size_t bytes, int depth);
    nlohmann::json latency(size_t bytes);
    nlohmann::json steady(size_t bytes, int depth);
    nlohmann::json idle();
    void close();
    // How far steady() is; for the word on an error.
    nlohmann::json progress() const;

private:
    using Stream = softdev::net::Stream;
    struct Run {
        double seconds;
        double cpu_seconds;
        uint64_t bytes;          // received here
        uint64_t null_requests;  // isend and irecv answered "not now"
    };

    static nlohmann::json calls();
    void note_resources();
    void connect();
    nlohmann::json network() const;
    std::vector<Stream> streams(int depth, size_t slot_bytes, bool all);
    Run run(std::vector<Stream>& streams, uint64_t messages);
    softdev::net::Idle between_passes() const {
        return {.sleep = std::chrono::microseconds(options_.sleep_us), .spin = options_.spin};
    }
    std::chrono::seconds patience() const { return std::chrono::seconds(options_.patience_s); }

    const Options& options_;
    const int side_;
    Control& control_;
    softdev::net::CommNet net_;
    softdev::net::Connections connections_;
    struct Progress {
        uint64_t messages = 0;  // completed on this side
        uint64_t wrong_messages = 0;
        uint64_t wrong_bytes = 0;
        double last_s = 0;  // of the monotonic clock
    };
    Progress progress_;
    long memory_before_ = 0;  // before the first connection
    long descriptors_before_ = 0;
};

}  // namespace netperf
