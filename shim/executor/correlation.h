// SPDX-License-Identifier: Apache-2.0
// How much the reduced sums of an update resemble those of updates before it: what a training that
// swings to and fro shows, long before its norms do (docs/accuracy.md).
#pragma once

#include <cstdint>
#include <vector>

#include "shim/executor/kernels.h"
#include "shim/executor/script.h"

namespace deft::executor {

// Of a few pieces of a plan, each a window of it. The hook's thread alone.
class Correlation {
public:
    static constexpr std::size_t kPieces = 4;
    static constexpr std::uint32_t kBack = 6;  // updates, between what is compared at the farthest
    static constexpr std::uint64_t kWindow = 16 * 1024;  // elements
    // What a transfer adds to: a.a, a.b, b.b, a.c, c.c of this sum a, the one before it b and that
    // of kBack updates before c.
    static constexpr std::size_t kSums = 5;

    // Chooses pieces of one update, spread over the iteration, of which every sum goes the same
    // way: not those that take turns between lanes or are cut in different ways. None of covap's,
    // whose updates hold no whole sums.
    explicit Correlation(const Script& script);

    std::uint64_t device_bytes() const { return bytes_; }
    // An update is left out: what follows is not compared with what came before.
    void restart() noexcept;
    // Where it keeps old sums: so much device memory.
    void memory(cuda::DevicePointer memory) { memory_ = memory; }
    // Behind the transfer that Script::launches[launch] has made, on its stream: its sum is at
    // `to`, `out` are kSums doubles in device memory. CUDA's result.
    int after(const Kernels& kernels, std::size_t launch, cuda::Stream stream,
              cuda::DevicePointer to, cuda::DevicePointer out) noexcept;

private:
    struct Piece {
        std::uint32_t bucket = 0;
        std::uint32_t lane = 0;   // its stream orders what is kept
        std::uint64_t begin = 0;  // bytes of the bucket
        std::uint64_t end = 0;
        Element element = Element::F32;
        std::uint64_t skip = 0;  // bytes of the piece before the window
        std::uint64_t count = 0;
        std::uint64_t at = 0;    // in the memory
        std::uint64_t slot = 0;  // bytes between two old sums there
        std::uint64_t updates = 0;

        bool operator==(const Piece& other) const {
            return bucket == other.bucket && lane == other.lane && begin == other.begin &&
                   end == other.end;
        }
    };
    static constexpr std::uint8_t kNone = 0xff;
    static std::uint64_t times(const Script& script, const Piece& piece);

    std::vector<Piece> pieces_;
    std::vector<std::uint8_t> piece_of_;  // by launch
    cuda::DevicePointer memory_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace deft::executor
