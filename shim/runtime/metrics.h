// SPDX-License-Identifier: Apache-2.0
// One rank's figures in Prometheus' text format (version 0.0.4), for node_exporter's textfile
// collector. Names and meanings are part of the interface: docs/metrics.md.
#pragma once

#include <string>

#include "shim/learning/track.h"
#include "shim/runtime/report.h"

namespace deft {

struct MetricsFacts {
    std::string job_id;   // empty: there is none
    bool links = true;    // with the process's links: for one of its ranks
    bool killed = false;  // the kill switch is there
};

// `track` may be null. Includes the link counters of the process as they are now.
std::string metrics_text(const ReportFacts& facts, const Track* track, const MetricsFacts& more);

}  // namespace deft
