// SPDX-License-Identifier: Apache-2.0
// The moves that every algorithm is made of: take what peers sent, combine it with the own input,
// keep it, pass it on; one chunk at a time, in the step buffers of the connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "softdev/nccl/reduce.h"
#include "softdev/nccl_kernels/communicator.h"

namespace softdev::nccl_kernels {

/// How a chunk goes through the step buffers. A slice is told to the peer as one.
struct Slicing {
    std::size_t slices_per_chunk = 1;
    std::size_t steps_per_slice = 1;
};

/// One move. Pointers may be null; peers are those of the Primitives.
struct Move {
    bool receive = false;
    bool send = false;
    const std::byte* input = nullptr;
    bool scale_input = false;  ///< apply what the operation does to each rank's own input
    std::byte* output = nullptr;
    bool finish = false;  ///< apply what the operation does to the result
    std::size_t elements = 0;
};

inline std::size_t divide_up(std::size_t n, std::size_t by) {
    return (n + by - 1) / by;
}

/// Copies the own input to the output, where it is not there already (in place).
inline void take_own(Move& move, const std::byte* input, std::byte* output) {
    move.input = input;
    move.output = input == output ? nullptr : output;
}

class Primitives {
public:
    struct Shape {
        Protocol protocol = Protocol::simple;
        Slicing slicing;
        std::size_t element_bytes = 1;
        std::size_t step_bytes = 0;  ///< of Simple, where it is not the communicator's
        std::size_t connection = 0;  ///< 0: collectives, 1: messages
    };

    /// Peers end at the first -1.
    Primitives(const Channel& channel, const Shape& shape, const nccl::Reduction& reduction,
               std::span<const int> from, std::span<const int> to);
    /// Leaves the connections where the next work begins.
    ~Primitives();
    Primitives(const Primitives&) = delete;
    Primitives& operator=(const Primitives&) = delete;

    void begin(const Move& move);
    /// Goes on as far as it can without waiting. True: the move is over.
    bool advance();
    /// Begins and waits. False: the communicator is aborted.
    bool run(const Move& move);

private:
    struct End {
        Connection connection;
        std::uint64_t step = 0;
        std::size_t seen = 0;  ///< lines of the present slice that have arrived
        std::vector<std::byte> payload;
    };

    std::size_t slice_elements() const;
    bool room(const End& end) const;
    bool arrived(End& end, std::size_t bytes);
    bool lines_arrived(End& end, std::size_t bytes, std::size_t line_bytes);
    std::byte* place_of(const End& end) const;
    std::size_t wire_bytes(const End& end, std::size_t bytes) const;
    bool low_latency() const { return shape_.protocol != Protocol::simple; }
    void move_slice(std::size_t elements);
    void combine(std::size_t elements);
    const std::byte* unpack(End& end, std::size_t bytes);
    void pack(const End& end, const std::byte* payload, std::size_t bytes) const;
    void post();

    const Channel& channel_;
    Shape shape_;
    nccl::Reduction reduction_;
    std::size_t step_bytes_;
    std::vector<End> from_;
    std::vector<End> to_;
    std::vector<std::byte> scratch_;
    Move move_;
    std::size_t slice_ = 0;
    std::size_t done_ = 0;  ///< elements of the move
};

}  // namespace softdev::nccl_kernels
