// SPDX-License-Identifier: Apache-2.0
// Brings what a port's device has written into a GPU's memory to where the GPU sees it: a queue
// pair that is connected to itself reads from there. The PCI bus takes no read past writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "plugin/core/gpu_memory.h"
#include "plugin/verbs/pages.h"
#include "plugin/verbs/queue_pair.h"

namespace deft::net {

class VerbsFlusher final : public Flusher {
public:
    static constexpr std::uint32_t kDepth = 64;  // reads that may be open

    // `options`: of a path over the same port. NULL where it cannot be had, which was logged. Some
    // milliseconds. It reads a moment later: the queue pair is connected by another thread.
    static std::shared_ptr<VerbsFlusher> make(std::shared_ptr<VerbsDomain> domain,
                                              const VerbsQueuePair::Options& options);
    ~VerbsFlusher() override;

    const Domain* domain() const override { return pair_->domain().get(); }
    std::uint64_t begin(const Registration& registration, const void* address) override;
    std::uint64_t done() override;
    bool failed() const override;

private:
    static constexpr std::size_t kPage = 4096;
    explicit VerbsFlusher(std::shared_ptr<VerbsQueuePair> pair)
        : pair_(std::move(pair)), landing_(kPage) {}

    std::shared_ptr<VerbsQueuePair> pair_;
    Pages landing_;  // what is read goes there, and nobody looks at it
    std::unique_ptr<Registration> registration_;
    std::uint64_t begun_ = 0;
    std::uint64_t done_ = 0;
    bool failed_ = false;
};

}  // namespace deft::net
