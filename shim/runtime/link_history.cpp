// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/link_history.h"

#include <utility>

#include "base/link_stats.h"

namespace deft {

void LinkHistory::look(std::int64_t now) {
    const LinkStats& links = LinkStats::process();
    if (links.size() == 0 || (!samples_.empty() && now - samples_.back().at < kApart)) {
        return;
    }
    Sample sample;
    if (samples_.size() >= kKept) {
        sample = std::move(samples_.front());  // its memory
        samples_.pop_front();
    }
    sample.at = now;
    sample.sent.clear();
    sample.again.clear();
    for (std::size_t i = 0; i < links.size(); ++i) {
        sample.sent.push_back(links[i].bytes_sent.load(std::memory_order_relaxed));
        sample.again.push_back(links[i].resent_bytes.load(std::memory_order_relaxed));
    }
    samples_.push_back(std::move(sample));
}

}  // namespace deft
