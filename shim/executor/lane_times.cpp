// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lane_times.h"

#include <algorithm>

namespace deft::executor {

std::unique_ptr<LaneTimes> LaneTimes::create(const cuda::Execution& driver, cuda::Context context,
                                             const Script& script) {
    std::unique_ptr<LaneTimes> times(new LaneTimes(driver, context));
    times->list_uses(script);
    for (Measured& call : times->ring_) {
        call.spans.resize(script.lanes);
        for (Span& span : call.spans) {
            if (driver.driver->EventCreate(&span.begin, 0) != cuda::kSuccess ||
                driver.driver->EventCreate(&span.end, 0) != cuda::kSuccess) {
                return nullptr;
            }
        }
    }
    return times;
}

LaneTimes::~LaneTimes() {
    const cuda::Current current(*driver_.driver, context_);
    if (!current) {
        return;
    }
    for (const Measured& call : ring_) {
        for (const Span& span : call.spans) {
            for (cuda::Event event : {span.begin, span.end}) {
                if (event != nullptr) {
                    driver_.EventDestroy(event);
                }
            }
        }
    }
}

void LaneTimes::list_uses(const Script& script) {
    for (const Action& action : script.actions) {
        first_use_.push_back(uses_.size());
        for (std::uint32_t lane = 0; lane < script.lanes; ++lane) {
            LaneUse use;
            use.lane = lane;
            use.action = first_use_.size() - 1;
            for (std::uint32_t i = action.launch; i < action.launch_end; ++i) {
                if (script.launches[i].lane == lane) {
                    use.pieces.push_back(script.launches[i].end - script.launches[i].begin);
                }
            }
            if (!use.pieces.empty()) {
                use.each.reserve(kEach);  // nothing is allocated while the job runs
                uses_.push_back(std::move(use));
            }
        }
    }
    first_use_.push_back(uses_.size());
}

void LaneTimes::begin(std::size_t action) noexcept {
    Measured& next = ring_[written_ % kRing];
    const bool wanted =
        !stopped_.load(std::memory_order_relaxed) && !next.issued.load(std::memory_order_acquire);
    current_ = wanted ? &next : nullptr;
    if (current_ != nullptr) {
        current_->action = action;
        for (Span& span : current_->spans) {
            span.used = false;
        }
    }
}

void LaneTimes::enter(std::uint32_t lane, cuda::Stream stream) noexcept {
    if (current_ == nullptr || current_->spans[lane].used) {
        return;
    }
    Span& span = current_->spans[lane];
    span.used = driver_.driver->EventRecord(span.begin, stream) == cuda::kSuccess;
    if (!span.used) {
        stop();
        current_ = nullptr;
    }
}

void LaneTimes::end(const std::vector<cuda::Stream>& streams) noexcept {
    bool any = false;
    for (std::size_t lane = 0; current_ != nullptr && lane < current_->spans.size(); ++lane) {
        const Span& span = current_->spans[lane];
        if (!span.used) {
            continue;
        }
        any = true;
        if (driver_.driver->EventRecord(span.end, streams[lane]) != cuda::kSuccess) {
            stop();
            current_ = nullptr;
        }
    }
    if (current_ != nullptr && any) {
        current_->issued.store(true, std::memory_order_release);
        ++written_;
    }
    current_ = nullptr;
}

void LaneTimes::take() noexcept {
    const cuda::Current current(*driver_.driver, context_);
    if (!current) {
        return;
    }
    for (std::size_t i = 0; i < kRing; ++i) {
        Measured& call = ring_[taken_ % kRing];
        if (!call.issued.load(std::memory_order_acquire) || !take(call)) {
            return;
        }
        call.issued.store(false, std::memory_order_release);
        ++taken_;
    }
    if (taken_ >= kMost) {
        stop();
    }
}

bool LaneTimes::take(Measured& call) noexcept {
    bool good = true;
    for (Span& span : call.spans) {
        if (!span.used) {
            continue;
        }
        const int over = driver_.driver->EventQuery(span.end);
        if (over == cuda::kNotReady) {
            return false;
        }
        good = good && over == cuda::kSuccess &&
               driver_.driver->EventElapsedTime(&span.ms, span.begin, span.end) == cuda::kSuccess;
    }
    for (std::size_t i = first_use_[call.action]; good && i < first_use_[call.action + 1]; ++i) {
        const Span& span = call.spans[uses_[i].lane];
        if (span.used) {
            uses_[i].seconds += static_cast<double>(span.ms) * 1e-3;
            ++uses_[i].measured;
            if (uses_[i].each.size() < kEach) {
                uses_[i].each.push_back(span.ms * 1e-3F);
            }
        }
    }
    calls_ += good ? 1 : 0;
    return true;
}

}  // namespace deft::executor
