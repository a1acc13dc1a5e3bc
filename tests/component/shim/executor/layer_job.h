// SPDX-License-Identifier: Apache-2.0
// One rank's job whose layers wait for their own sums: buffers as DDP has them, an executor, and
// the sums that its calls have left.
#pragma once

#include <limits>

#include "shim/executor/layer_sums.h"
#include "shim/nccl/sum_mark.h"
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {

using Wait = LayerSums::Wait;

inline std::uint64_t mark_of(std::size_t place, std::size_t buckets) {
    return pack({DEFT_SUM_BUCKET, 1, static_cast<std::uint32_t>(place), place + 1 == buckets});
}

class LayerJob {
public:
    LayerJob(const Rank& self, const Lanes& lanes, std::uint32_t links, const Plan& plan,
             const std::vector<Shape>& shapes,
             const cuda::Execution& driver = *cuda::Execution::get(),
             const Nccl& nccl = soft_nccl())
        : self_(self), shapes_(shapes) {
        CompileOptions options;
        options.lanes = links;
        options.layers = true;
        options.ranks = static_cast<std::uint32_t>(self.nranks);
        std::string problem;
        Script script = compile(plan, shapes_, options, problem);
        EXPECT_EQ(problem, "");
        for (std::size_t b = 0; b < shapes_.size(); ++b) {
            script.marks.push_back(mark_of(b, shapes_.size()));
            const std::vector<std::byte> empty(shapes_[b].bytes());
            sums_.push_back(std::make_unique<Device<std::byte>>(empty));
            sent_.push_back(shapes_[b].in_place ? nullptr
                                                : std::make_unique<Device<std::byte>>(empty));
        }
        ExecutorOptions executing;
        executing.lease = true;
        executor =
            Executor::create(driver, nccl, self.rank, lanes.pointers, script, executing, problem);
        EXPECT_NE(executor, nullptr) << problem;
        executor->vouch(std::numeric_limits<std::int64_t>::max());
    }

    // A call of another count or mark may take the place of a bucket's.
    int call(std::int64_t t, std::uint32_t b, std::uint64_t mark, std::uint64_t count) {
        return call(local_gradient(shapes_[b], self_.rank, t, b), b, mark, count);
    }
    int call(std::int64_t t, std::uint32_t b) {
        return call(t, b, mark_of(b, shapes_.size()), shapes_[b].count);
    }
    int call(const std::vector<std::byte>& gradient, std::uint32_t b) {
        return call(gradient, b, mark_of(b, shapes_.size()), shapes_[b].count);
    }

    Wait wait_here(std::uint32_t b) { return left[b].sums->wait_here(b, left[b].iteration); }
    Wait wait(std::uint32_t b) {
        return left[b].sums->wait(b, left[b].iteration,
                                  reinterpret_cast<cuda::Stream>(self_.stream));
    }
    std::vector<std::byte> sum(std::uint32_t b) const { return sums_[b]->host(); }
    void expect_sum(std::int64_t t, std::uint32_t b) const {
        expect_delivered(
            sum(b), shapes_[b],
            [&](std::uint64_t i) { return reduced(self_.nranks, t, b, i, shapes_[b].op); },
            "bucket " + std::to_string(b) + " iteration " + std::to_string(t));
    }
    void let_go() {
        for (const LeftSum& one : left) {
            if (one.sums != nullptr) {
                one.sums->release();
            }
        }
        left.clear();
    }

    std::unique_ptr<Executor> executor;
    std::vector<LeftSum> left;

private:
    int call(const std::vector<std::byte>& gradient, std::uint32_t b, std::uint64_t mark,
             std::uint64_t count) {
        Device<std::byte>& from = sent_[b] != nullptr ? *sent_[b] : *sums_[b];
        from.set(gradient);
        Shape shape = shapes_[b];
        shape.count = count;
        const int result = hooked_all_reduce(*executor, self_, self_.stream, from.get(),
                                             sums_[b]->get(), shape, mark);
        left.push_back(take_left_sum());
        return result;
    }

    const Rank& self_;
    const std::vector<Shape> shapes_;
    std::vector<std::unique_ptr<Device<std::byte>>> sums_;
    std::vector<std::unique_ptr<Device<std::byte>>> sent_;  // null: in place
};

}  // namespace deft::executor::test
