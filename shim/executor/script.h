// SPDX-License-Identifier: Apache-2.0
// A plan compiled into what is done at each gradient call. Pure: no CUDA, no NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/model/plan.h"
#include "shim/nccl/series.h"

namespace deft::executor {

// One gradient call of the iteration, by its position: bucket p of the plan is call p.
struct Shape {
    std::uint64_t count = 0;  // of a reduce-scatter or an all-gather, that of one rank
    int type = 0;             // ncclDataType_t
    int op = 0;  // ncclRedOp_t, one of NCCL's own (user reductions belong to one communicator)
    bool in_place = true;  // the sum takes the place of what is summed, as in PyTorch
    Function function = Function::AllReduce;

    // Of the bucket. Of a reduce-scatter or an all-gather, what one rank has of it: its bytes
    // [begin, end) are those of every rank's part.
    std::uint64_t bytes() const;
    bool operator==(const Shape&) const = default;
};

// With the reduce-scatters and all-gathers by which sums of these shapes go in halves.
std::vector<Shape> with_halves(std::vector<Shape> shapes, std::uint32_t ranks);

struct CompileOptions {
    std::uint32_t lanes = 1;         // the plan's link l runs on lane l
    std::uint32_t forward_lane = 0;  // a whole bucket alone on it is left to the job's own
                                     // communicator; kNoLane: never
    std::uint32_t history = 0;       // reduced sums kept for prediction: 0, 1 (lead) or 2 (quad)
    std::uint32_t max_delay = 1;     // iterations; the last check of the caps
    std::uint32_t max_merge = 2;     // gradients in one update
    bool residual = false;           // covap: merging is error feedback, max_merge does not apply
    bool delay_half = false;         // delay or merge float16 too
    bool layers = false;             // who makes the calls waits for each bucket's sum itself
    std::uint32_t ranks = 1;         // of the communicator
    std::uint64_t most_staged = 32 << 20;  // bytes in a lane's staging memory
};
inline constexpr std::uint32_t kNoLane = ~0U;

// Bytes [begin, end) of a bucket with one life: the same generations are sent and delivered.
struct Region {
    std::uint32_t bucket = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool whole = false;            // of its bucket
    std::uint32_t first_slot = 0;  // its slots follow each other
    std::uint32_t slots = 0;       // 0: sent from and into the caller's buffers
    bool predicted = false;        // its slots keep what prediction needs
};

// Shadow memory of one region for one generation at a time.
struct Slot {
    std::uint32_t region = 0;
    std::uint64_t offset = 0;  // in the shadow buffer, 512-byte aligned
};

struct Accumulate {
    std::uint32_t slot = 0;
    bool last = false;  // residual: this gradient is sent in this very call
};

struct Launch {
    std::uint32_t region = 0;
    std::uint32_t slot = 0;   // kDirect: from the caller's send into its receive buffer
    std::uint64_t begin = 0;  // bytes of the bucket
    std::uint64_t end = 0;
    std::uint32_t lane = 0;
    // Of two ranks a sum may go as a reduce-scatter and, later on the same lane, an all-gather:
    // rank r sums the r-th half of these bytes, in the caller's receive buffer.
    planner::Operation operation = planner::Operation::AllReduce;
    bool to_caller = false;  // into the caller's receive buffer: of this very call, or, where
                             // layers wait for their own, of the bucket's last
    // Where they do: the last piece of the bucket on this lane, and on any.
    bool ends_lane = false;
    bool ends_bucket = false;

    bool halves() const { return operation != planner::Operation::AllReduce; }
    // What it carries, as an all-reduce of so many bytes does.
    std::uint64_t bytes() const { return halves() ? (end - begin) / 2 : end - begin; }
};
inline constexpr std::uint32_t kDirect = ~0U;

struct Deliver {
    std::uint32_t region = 0;
    std::uint32_t slot = 0;   // kDirect: nothing to copy, the lanes wrote it
    std::uint64_t lanes = 0;  // bit l: lane l carried some of it
    std::uint32_t delay = 0;  // iterations
    bool add = false;         // a second generation in the same update
    bool in_place = false;    // the lanes wrote the caller's buffer
    bool predict = false;
    std::uint32_t previous = 0;  // slots of the two generations before it, if predict
    std::uint32_t before_previous = 0;
};

struct Zero {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

// In the shadow buffer.
struct Staging {
    std::uint64_t offset = 0;  // 512-byte aligned
    std::uint64_t bytes = 0;
};

// What one gradient call does, in this order.
struct Action {
    bool forward = false;                              // nothing of its own: the hook forwards it
    std::uint32_t accumulate = 0, accumulate_end = 0;  // into Script's tables
    std::uint32_t launch = 0, launch_end = 0;
    std::uint32_t deliver = 0, deliver_end = 0;
    std::uint32_t zero = 0, zero_end = 0;

    bool nothing() const {
        return accumulate == accumulate_end && launch == launch_end && deliver == deliver_end &&
               zero == zero_end;
    }
};

struct Script {
    std::vector<Shape> shapes;  // by position
    // What the companion says of the sums, by position: a sum of which it says something else is
    // none of this plan's. Empty: that does not matter.
    std::vector<std::uint64_t> marks;
    std::uint32_t period = 1;       // iterations; a multiple of the plan's
    std::uint32_t plan_period = 1;  // where one ends, no sum is half made
    std::uint32_t lanes = 1;
    std::uint64_t fingerprint = 0;  // of the plan
    std::vector<Action> actions;    // iteration * shapes.size() + position
    std::vector<Region> regions;
    std::vector<Slot> slots;
    std::vector<Accumulate> accumulates;
    std::vector<Launch> launches;
    std::vector<Deliver> deliveries;
    std::vector<Zero> zeros;
    // Where a lane gathers what it carries of a reduce-scatter or an all-gather, by lane; empty: of
    // neither (shards.h).
    std::vector<Staging> staging;
    std::uint64_t shadow_bytes = 0;  // of slots and staging
    std::uint32_t max_delay = 0;
    std::uint32_t max_merge = 1;
    bool residual = false;
    // No call waits for its sum: LayerSums. What is sent may be that of an earlier call.
    bool layers = false;
    std::uint32_t interval = 1;  // residual: iterations between two transfers of a region

    const Action& action(std::uint64_t iteration, std::size_t position) const {
        return actions[static_cast<std::size_t>(iteration % period) * shapes.size() + position];
    }
    // True if every call is forwarded: nothing to execute.
    bool forwards_all() const;
    // Some sum goes as a reduce-scatter and an all-gather.
    bool halves() const;
    // Of all its calls.
    Series series() const {
        return shapes.empty() ? Series::Sums : series_of(shapes.front().function);
    }
};

// `problem` is empty if the script can be executed, else it says why not. Off the hot path.
Script compile(const planner::Plan& plan, std::span<const Shape> shapes,
               const CompileOptions& options, std::string& problem);

}  // namespace deft::executor
