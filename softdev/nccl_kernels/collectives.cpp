// SPDX-License-Identifier: Apache-2.0
// Ring and tree algorithms. Chunks, slices and their order are those of NCCL's kernels: the proxies
// count on them.
#include <algorithm>

#include "softdev/nccl_kernels/operation.h"
#include "softdev/nccl_kernels/primitives.h"
#include "softdev/nccl_kernels/works.h"

namespace softdev::nccl_kernels {
namespace {

constexpr Slicing kTwoSlices{2, 2};  // half of the steps in flight, half being filled
constexpr Slicing kOneStep{1, 1};

// What the algorithms of one work have in common.
struct Job {
    const Channel& channel;
    const Function& function;
    CollectiveWork::Share share;
    nccl::Reduction reduction;
    std::size_t element_bytes;
    const std::byte* input;
    std::byte* output;
    int root;

    const std::byte* in(std::size_t element) const { return input + element * element_bytes; }
    std::byte* out(std::size_t element) const { return output + element * element_bytes; }

    Primitives::Shape shape(Slicing slicing) const {
        return {function.protocol, slicing, element_bytes, 0, 0};
    }
};

// A channel's ring: this rank's neighbours.
struct RingPeers {
    explicit RingPeers(const Channel& channel)
        : previous{channel.previous(), -1}, next{channel.next(), -1} {}
    int previous[2];
    int next[2];
};

bool ring_all_reduce(const Job& job) {
    const RingPeers peers(job.channel);
    Primitives primitives(job.channel, job.shape(kTwoSlices), job.reduction, peers.previous,
                          peers.next);
    const auto ranks = static_cast<std::size_t>(job.channel.ranks());
    const auto index = static_cast<std::size_t>(job.channel.ring_index());
    std::size_t chunk = job.share.chunk;
    const std::size_t loop = ranks * chunk;
    for (std::size_t at = 0; at < job.share.elements; at += loop) {
        const std::size_t left = job.share.elements - at;
        if (left < loop) {
            const std::size_t granule = 16 / job.element_bytes;
            chunk = divide_up(divide_up(left, ranks), granule) * granule;
        }
        // 2(n-1)+1 moves: chunks go round once to be summed and once more to be handed out.
        for (std::size_t turn = 0; turn < 2 * ranks - 1; ++turn) {
            const std::size_t which = (index + 2 * ranks - 1 - turn) % ranks;
            const std::size_t begin = std::min(which * chunk, left);
            const bool whole = turn == ranks - 1;  // this chunk's sum is complete here
            Move move;
            move.receive = turn > 0;
            move.send = turn < 2 * ranks - 2;
            move.elements = std::min(chunk, left - begin);
            if (turn < ranks) {
                move.input = job.in(job.share.offset + at + begin);
                move.scale_input = true;
            }
            if (turn >= ranks - 1) {
                move.output = job.out(job.share.offset + at + begin);
            }
            move.finish = whole;
            if (!primitives.run(move)) {
                return false;
            }
        }
    }
    return true;
}

// Moves of every chunk of this channel's share. `fill` gets each move, with its size known, the
// chunk's first element and the number of the turn.
template <class Fill>
bool in_chunks(const Job& job, Primitives& primitives, std::size_t turns, Fill fill) {
    for (std::size_t at = 0; at < job.share.elements; at += job.share.chunk) {
        for (std::size_t turn = 0; turn < turns; ++turn) {
            Move move;
            move.elements = std::min(job.share.chunk, job.share.elements - at);
            fill(move, job.share.offset + at, turn);
            if (!primitives.run(move)) {
                return false;
            }
        }
    }
    return true;
}

bool ring_all_gather(const Job& job) {
    const RingPeers peers(job.channel);
    Primitives primitives(job.channel, job.shape(kTwoSlices), job.reduction, peers.previous,
                          peers.next);
    const auto order = job.channel.ring_ranks();
    const std::size_t ranks = order.size();
    return in_chunks(job, primitives, ranks, [&](Move& move, std::size_t data, std::size_t turn) {
        const auto owner = static_cast<std::size_t>(order[(ranks - turn) % ranks]);
        move.receive = turn > 0;
        move.send = turn < ranks - 1;
        move.output = job.out(data + owner * job.share.count);
        if (turn == 0) {
            take_own(move, job.in(data), move.output);
        }
    });
}

bool ring_reduce_scatter(const Job& job) {
    const RingPeers peers(job.channel);
    Primitives primitives(job.channel, job.shape(kTwoSlices), job.reduction, peers.previous,
                          peers.next);
    const auto order = job.channel.ring_ranks();
    const std::size_t ranks = order.size();
    return in_chunks(job, primitives, ranks, [&](Move& move, std::size_t data, std::size_t turn) {
        const auto owner = static_cast<std::size_t>(order[ranks - 1 - turn]);
        move.receive = turn > 0;
        move.send = turn < ranks - 1;
        move.input = job.in(data + owner * job.share.count);
        move.scale_input = true;
        if (turn == ranks - 1) {
            move.output = job.out(data);
            move.finish = true;
        }
    });
}

bool ring_broadcast(const Job& job) {
    const RingPeers peers(job.channel);
    Primitives primitives(job.channel, job.shape(kOneStep), job.reduction, peers.previous,
                          peers.next);
    const auto order = job.channel.ring_ranks();
    const bool first = order[0] == job.root;
    const bool last = order[1] == job.root;
    return in_chunks(job, primitives, 1, [&](Move& move, std::size_t data, std::size_t) {
        move.receive = !first;
        move.send = !last;
        move.output = job.out(data);
        if (first) {
            take_own(move, job.in(data), move.output);
        }
    });
}

bool ring_reduce(const Job& job) {
    const RingPeers peers(job.channel);
    Primitives primitives(job.channel, job.shape(kOneStep), job.reduction, peers.previous,
                          peers.next);
    const auto order = job.channel.ring_ranks();
    const bool last = job.channel.rank() == job.root;
    const bool first = order.back() == job.root;
    return in_chunks(job, primitives, 1, [&](Move& move, std::size_t data, std::size_t) {
        move.receive = !first;
        move.send = !last;
        move.input = job.in(data);
        move.scale_input = true;
        if (last) {
            move.output = job.out(data);
            move.finish = true;
        }
    });
}

// The root sums what its children send and sends the sum down.
bool tree_root(const Job& job) {
    const auto down = job.channel.tree_down();
    Primitives primitives(job.channel, job.shape(kOneStep), job.reduction, down, down);
    return in_chunks(job, primitives, 1, [&](Move& move, std::size_t data, std::size_t) {
        move.receive = true;
        move.send = true;
        move.input = job.in(data);
        move.scale_input = true;
        move.output = job.out(data);
        move.finish = true;
    });
}

// One direction of a rank that is not the root: its moves, one after the other.
class Flow {
public:
    Flow(const Job& job, bool up, std::span<const int> from, std::span<const int> to)
        : job_(job),
          up_(up),
          receives_(from[0] != -1),
          sends_(to[0] != -1),
          primitives_(job.channel, job.shape(kOneStep), job.reduction, from, to) {}

    bool over() const { return !moving_ && at_ >= job_.share.elements; }

    /// True: something moved.
    bool advance() {
        if (over()) {
            return false;
        }
        if (!moving_) {
            primitives_.begin(next());
            moving_ = true;
        }
        if (!primitives_.advance()) {
            return false;
        }
        moving_ = false;
        at_ += job_.share.chunk;
        return true;
    }

private:
    Move next() const {
        const std::size_t data = job_.share.offset + at_;
        Move move;
        move.receive = receives_;
        move.send = sends_;
        move.elements = std::min(job_.share.chunk, job_.share.elements - at_);
        if (up_) {
            move.input = job_.in(data);
            move.scale_input = true;
        } else {
            move.output = job_.out(data);
        }
        return move;
    }

    const Job& job_;
    bool up_;
    bool receives_;
    bool sends_;
    Primitives primitives_;
    std::size_t at_ = 0;
    bool moving_ = false;
};

// Sums go up and results come down at the same time: a GPU has threads for each.
bool tree_inner(const Job& job) {
    const int up[2] = {job.channel.tree_up(), -1};
    const auto down = job.channel.tree_down();
    Flow sums(job, true, down, up);
    Flow results(job, false, up, down);
    Patience patience;
    while (!sums.over() || !results.over()) {
        const bool sums_moved = sums.advance();
        const bool results_moved = results.advance();
        if (sums_moved || results_moved) {
            patience.reset();
            continue;
        }
        if (job.channel.aborted()) {
            return false;
        }
        patience.wait();
    }
    return true;
}

bool run(const Job& job) {
    switch (job.function.collective) {
        case Collective::all_reduce:
            return job.function.algorithm == Algorithm::ring ? ring_all_reduce(job)
                   : job.channel.tree_up() == -1             ? tree_root(job)
                                                             : tree_inner(job);
        case Collective::all_gather:
            return ring_all_gather(job);
        case Collective::reduce_scatter:
            return ring_reduce_scatter(job);
        case Collective::broadcast:
            return ring_broadcast(job);
        case Collective::reduce:
            return ring_reduce(job);
        case Collective::all_gather_v:
        case Collective::messages:
            break;
    }
    return true;
}

}  // namespace

std::uint64_t CollectiveWork::argument(std::size_t element_bytes) const {
    const auto argument = load<std::uint64_t>(work_, layout_.argument);
    if ((flags() & collective_work::kArgumentIsPointer) == 0) {
        return argument;
    }
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const void*>(argument), element_bytes);
    return value;
}

CollectiveWork::Share CollectiveWork::share(int channel, Protocol protocol,
                                            std::size_t element_bytes) const {
    // Chunks are counted in these many bytes.
    const std::size_t grain = protocol == Protocol::ll      ? 16
                              : protocol == Protocol::ll128 ? 1920
                                                            : 512;
    const int first = static_cast<int>(flags() & 0xff);
    const int last = static_cast<int>(flags() >> 8 & 0xff);
    const auto shares = load<std::array<std::uint64_t, 4>>(work_, layout_.shares);
    const auto chunk = [&](int which) {
        return (shares[3] >> (21 * which) & 0x1fffff) * (grain / element_bytes);
    };
    const std::size_t between = last > first + 1 ? static_cast<std::size_t>(last - first - 1) : 0;
    Share share;
    share.count = shares[0] + between * shares[1] + shares[2];
    if (channel == first) {
        share.elements = shares[0];
        share.chunk = chunk(0);
    } else if (channel == last) {
        share.offset = shares[0] + between * shares[1];
        share.elements = shares[2];
        share.chunk = chunk(2);
    } else {
        share.offset = shares[0] + static_cast<std::size_t>(channel - first - 1) * shares[1];
        share.elements = shares[1];
        share.chunk = chunk(1);
    }
    return share;
}

bool supported(const Function& function) {
    return function.algorithm == Algorithm::none || function.algorithm == Algorithm::ring ||
           (function.algorithm == Algorithm::tree && function.collective == Collective::all_reduce);
}

bool run_collective(const Channel& channel, const Function& function, const CollectiveWork& work) {
    const std::size_t element_bytes = bytes_of(function.type);
    const bool takes_argument = function.operation == Operation::min_max ||
                                function.operation == Operation::pre_mul_sum ||
                                function.operation == Operation::sum_post_div;
    const Job job{channel,
                  function,
                  work.share(channel.number(), function.protocol, element_bytes),
                  reduction_of(function, takes_argument ? work.argument(element_bytes) : 0),
                  element_bytes,
                  work.input(),
                  work.output(),
                  work.root()};
    return run(job);
}

}  // namespace softdev::nccl_kernels
