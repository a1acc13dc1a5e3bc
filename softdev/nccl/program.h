// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "softdev/nccl/connection.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/reduce.h"

namespace softdev::nccl {

// One slice: out = reduce(local input, received inputs), written to the local output and all sends.
struct Step {
    enum Flag : uint8_t {
        kSource = 1,  // the local input takes part
        kReceive = 2,
        kSend = 4,
        kResult = 8,     // the local output is written
        kFinal = 16,     // the value is complete: the average's division
        kOriginal = 32,  // the local input is a rank's own contribution: pre-multiplication
    };
    const std::byte* source;
    std::byte* result;
    size_t count;  // elements
    uint8_t flags;
};

// What one channel of one rank does, in order; several programs of an operation run side by side.
struct Program {
    std::vector<Connection*> receive;
    std::vector<Connection*> send;
    Shape shape;
    std::vector<Step> steps;

    size_t count_flag(uint8_t flag) const {
        size_t n = 0;
        for (const Step& step : steps) {
            n += (step.flags & flag) != 0;
        }
        return n;
    }
    // No slice has more. NCCL posts whole buffers, but before 2.30 for a message no more than it
    // has.
    size_t most_bytes() const {
        if ((shape.op != NetOp::kSend && shape.op != NetOp::kRecv) || nccl_version() >= 23000) {
            return SIZE_MAX;
        }
        size_t most = 0;
        for (const Step& step : steps) {
            most = std::max(most, step.count);
        }
        return most;
    }
};

// One collective, or all sends and receives of one group.
struct Work {
    Reduction reduction;
    std::vector<Program> programs;
};

// A buffer range of a collective that one channel works on.
struct Part {
    size_t offset;  // elements
    size_t count;
};
// Channel `index` of `channels` gets an equal share in whole units of elements (the last the rest).
Part channel_part(size_t count, size_t unit, int index, int channels);

// Slices of one chunk (or of two steps of NCCL's ring: slices_per_chunk of them, the later ones
// empty when the chunk is short: they are sent with size 0).
struct Chunking {
    size_t slice_capacity;  // elements
    unsigned slices_per_chunk;
};
void add_chunk(Program& program, const Chunking& chunking, uint8_t flags, const std::byte* source,
               std::byte* result, size_t count, size_t element);

struct Buffers {
    const std::byte* send;
    std::byte* receive;
};

// Ring collectives: builders fill program.steps; program.receive and program.send hold the ring's
// connections. `count` as in the API (per rank for all-gather and reduce-scatter).
enum class RingKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce };
Shape ring_shape(RingKind kind, Protocol protocol);
void build_ring(Program& program, RingKind kind, Buffers buffers, size_t count, size_t element,
                Part part, int rank, int nranks, int root);

// Tree all-reduce.
struct TreeNode {
    int parent;  // -1: root
    std::vector<int> children;
};
// Two trees that between them use every rank's links evenly: odd channels use the mirrored one.
TreeNode tree_node(int rank, int nranks, int channel);
// `up` sends partial sums towards the root and is empty at the root, where `down` reduces as well.
void build_tree(Program& up, Program& down, bool root, Buffers buffers, size_t element, Part part);

}  // namespace softdev::nccl
