// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "softdev/nccl/program.h"

namespace softdev::nccl {
namespace {

constexpr uint8_t kOwn = Step::kSource | Step::kOriginal;

size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

Part channel_part(size_t count, size_t unit, int index, int channels) {
    const size_t share = round_up((count + channels - 1) / channels, unit);
    const size_t begin = std::min(count, share * index);
    return {begin, std::min(share, count - begin)};
}

void add_chunk(Program& program, const Chunking& chunking, uint8_t flags, const std::byte* source,
               std::byte* result, size_t count, size_t element) {
    // NCCL's rule: equal slices, but none smaller than 1/32 of the capacity.
    const size_t even =
        round_up((count + chunking.slices_per_chunk - 1) / chunking.slices_per_chunk, 16);
    const size_t slice =
        std::min(std::max(even, chunking.slice_capacity / 32), chunking.slice_capacity);
    size_t at = 0;
    for (unsigned i = 0; i < chunking.slices_per_chunk; ++i) {
        const size_t n = std::min(slice, count - at);
        program.steps.push_back({source == nullptr ? nullptr : source + at * element,
                                 result == nullptr ? nullptr : result + at * element, n, flags});
        at += n;
    }
}

static NetOp net_op(RingKind kind) {
    switch (kind) {
        case RingKind::kAllReduce:
            return NetOp::kAllReduce;
        case RingKind::kAllGather:
            return NetOp::kAllGather;
        case RingKind::kReduceScatter:
            return NetOp::kReduceScatter;
        case RingKind::kBroadcast:
            return NetOp::kBroadcast;
        case RingKind::kReduce:
            return NetOp::kReduce;
    }
    return NetOp::kAllReduce;
}

Shape ring_shape(RingKind kind, Protocol protocol) {
    const bool one_step =
        protocol != Protocol::kSimple || kind == RingKind::kBroadcast || kind == RingKind::kReduce;
    return {protocol, one_step ? 1u : 2u, net_op(kind)};
}

void build_ring(Program& program, RingKind kind, Buffers buffers, size_t count, size_t element,
                Part part, int rank, int nranks, int root) {
    const bool two_slices =
        program.shape.protocol == Protocol::kSimple && program.shape.steps_per_slice == 2;
    const Chunking chunking{program.send[0]->capacity(program.shape) / element,
                            two_slices ? 2u : 1u};
    const size_t full_chunk = chunking.slice_capacity * chunking.slices_per_chunk;
    const auto source = [&](size_t at) { return buffers.send + at * element; };
    const auto result = [&](size_t at) { return buffers.receive + at * element; };
    const auto behind = [&](int steps) {
        return static_cast<size_t>((rank - steps + 2 * nranks) % nranks);
    };
    const size_t end = part.offset + part.count;

    if (kind == RingKind::kAllReduce) {
        for (size_t base = part.offset; base < end;) {
            const size_t left = end - base;
            const size_t share =
                round_up((left + nranks - 1) / nranks, std::max<size_t>(16 / element, 1));
            const size_t chunk = std::min(full_chunk, share);
            const auto add = [&](size_t block, uint8_t flags) {
                const size_t at = std::min(base + block * chunk, end);
                add_chunk(program, chunking, flags, source(at), result(at),
                          std::min(chunk, end - at), element);
            };
            add(behind(1), kOwn | Step::kSend);
            for (int j = 2; j < nranks; ++j) {
                add(behind(j), kOwn | Step::kReceive | Step::kSend);
            }
            add(behind(0), kOwn | Step::kReceive | Step::kSend | Step::kResult | Step::kFinal);
            for (int j = 1; j < nranks - 1; ++j) {
                add(behind(j), Step::kReceive | Step::kSend | Step::kResult);
            }
            add(behind(nranks - 1), Step::kReceive | Step::kResult);
            base += std::min(left, chunk * nranks);
        }
        return;
    }
    for (size_t at = part.offset; at < end; at += full_chunk) {
        const size_t n = std::min(full_chunk, end - at);
        switch (kind) {
            case RingKind::kAllReduce:
                break;
            case RingKind::kAllGather: {
                const size_t own = behind(0) * count + at;
                const bool in_place = source(at) == result(own);
                add_chunk(program, chunking,
                          Step::kSource | Step::kSend | (in_place ? 0 : Step::kResult), source(at),
                          result(own), n, element);
                for (int j = 1; j < nranks; ++j) {
                    const uint8_t pass_on = j < nranks - 1 ? Step::kSend : 0;
                    add_chunk(program, chunking, Step::kReceive | Step::kResult | pass_on, nullptr,
                              result(behind(j) * count + at), n, element);
                }
                break;
            }
            case RingKind::kReduceScatter:
                add_chunk(program, chunking, kOwn | Step::kSend, source(behind(1) * count + at),
                          nullptr, n, element);
                for (int j = 2; j < nranks; ++j) {
                    add_chunk(program, chunking, kOwn | Step::kReceive | Step::kSend,
                              source(behind(j) * count + at), nullptr, n, element);
                }
                add_chunk(program, chunking, kOwn | Step::kReceive | Step::kResult | Step::kFinal,
                          source(behind(0) * count + at), result(at), n, element);
                break;
            case RingKind::kBroadcast: {
                const bool last = (rank + 1) % nranks == root;
                if (rank == root) {
                    const bool in_place = source(at) == result(at);
                    add_chunk(program, chunking,
                              Step::kSource | Step::kSend | (in_place ? 0 : Step::kResult),
                              source(at), result(at), n, element);
                } else {
                    add_chunk(program, chunking,
                              Step::kReceive | Step::kResult | (last ? 0 : Step::kSend), nullptr,
                              result(at), n, element);
                }
                break;
            }
            case RingKind::kReduce: {
                const bool first = (root + 1) % nranks == rank;
                if (rank == root) {
                    add_chunk(program, chunking,
                              kOwn | Step::kReceive | Step::kResult | Step::kFinal, source(at),
                              result(at), n, element);
                } else {
                    add_chunk(program, chunking, kOwn | Step::kSend | (first ? 0 : Step::kReceive),
                              source(at), nullptr, n, element);
                }
                break;
            }
        }
    }
}

}  // namespace softdev::nccl
