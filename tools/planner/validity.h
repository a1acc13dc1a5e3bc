// SPDX-License-Identifier: Apache-2.0
// Where a link is used as nobody measured it: with other numbers of ranks, or other messages.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"

namespace deft::tools {

// Of the messages on one link, in bytes. `most` is 0 where there are none.
struct MessageSizes {
    double least = INFINITY;
    double most = 0;
};

// By link: of the plans' messages, parts that travel together counted as one.
std::vector<MessageSizes> messages_of(const std::vector<const planner::Plan*>& plans,
                                      const planner::Fabric& fabric);
// The job as it is, on every link: a message for each bucket.
std::vector<MessageSizes> messages_of(const planner::Profile& profile,
                                      const planner::Fabric& fabric);

// What of the link's use nobody measured, in words; empty: all is measured, or nobody says what is.
std::string beyond_of(const planner::Link& link, const MessageSizes& sizes);

// A line for each such link: what the figures are then worth. `messages` by link.
std::string beyond_text(const planner::Fabric& fabric, const std::vector<MessageSizes>& messages,
                        const char* indent = "");

// The fabric's cost of all buckets on the first link, in iterations' compute; 0 without compute.
double coverage_rate(const planner::Profile& profile, const planner::Fabric& fabric);

// A line that asks whether a job is meant that only transfers; empty for others.
std::string coverage_text(const planner::Profile& profile, const planner::Fabric& fabric);

}  // namespace deft::tools
