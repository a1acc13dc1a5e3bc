// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/flusher.h"

#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "plugin/core/blocking_calls.h"

namespace deft::net {

std::shared_ptr<VerbsFlusher> VerbsFlusher::make(std::shared_ptr<VerbsDomain> domain,
                                                 const VerbsQueuePair::Options& options) {
    VerbsQueuePair::Options wanted = options;
    wanted.sends = kDepth;
    wanted.receives = 1;
    wanted.readable = true;
    std::string problem;
    auto pair = VerbsQueuePair::make(std::move(domain), wanted, problem);
    std::shared_ptr<VerbsFlusher> made;
    if (pair != nullptr) {
        made.reset(new VerbsFlusher(std::move(pair)));
        problem = "no memory";
        if (made->landing_.data() != nullptr) {
            made->registration_ = made->pair_->domain()->register_own(
                made->landing_.data(), made->landing_.size(), problem);
        }
    }
    if (made == nullptr || made->registration_ == nullptr) {
        DEFT_WARN_ONCE("writes to a GPU's memory are flushed by the CUDA driver, if it can: %s",
                       problem.c_str());
        return nullptr;
    }
    made->pair_->connect_to_itself();
    return made;
}

// As a path does it: memory that the device may still be at goes after the queue pair.
VerbsFlusher::~VerbsFlusher() {
    struct Rest {  // destroyed from below
        Pages memory;
        std::unique_ptr<Registration> registration;
        std::shared_ptr<VerbsQueuePair> pair;
    };
    BlockingCalls& calls = calls_that_end(pair_->context().device());
    pair_->end();
    auto rest = std::make_shared<Rest>();
    rest->memory = std::move(landing_);
    rest->registration = std::move(registration_);
    rest->pair = std::move(pair_);
    calls.run([last = std::move(rest)]() mutable { last.reset(); });
}

std::uint64_t VerbsFlusher::begin(const Registration& registration, const void* address) {
    if (failed_ || pair_->state() != VerbsQueuePair::State::Ready || begun_ - done() == kDepth) {
        return 0;
    }
    deft_verbs_sge_t piece{reinterpret_cast<std::uint64_t>(landing_.data()), 1,
                           registration_->local_key};
    deft_verbs_send_wr_t request{};
    request.wr_id = begun_ + 1;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = DEFT_VERBS_WR_RDMA_READ;
    request.send_flags = DEFT_VERBS_SEND_SIGNALED;
    request.remote_addr = reinterpret_cast<std::uint64_t>(address);
    request.rkey = registration.remote_key;
    if (pair_->post(request) != 0) {
        failed_ = true;
        return 0;
    }
    return ++begun_;
}

std::uint64_t VerbsFlusher::done() {
    std::array<deft_verbs_wc_t, 8> completions;
    for (int got = 1; got > 0 && done_ < begun_ && !failed_;) {
        got = pair_->poll(completions);
        failed_ = got < 0;
        for (int i = 0; i < got && !failed_; ++i) {
            const deft_verbs_wc_t& one = completions[static_cast<std::size_t>(i)];
            if (one.status == DEFT_VERBS_WC_SUCCESS) {
                done_ = one.wr_id;  // requests complete in their order
            } else {
                failed_ = true;
            }
        }
    }
    return done_;
}

bool VerbsFlusher::failed() const {
    return failed_ || pair_->lost();
}

}  // namespace deft::net
