// SPDX-License-Identifier: Apache-2.0
// The works of a launch, and the functions that do them. Each returns false when the communicator
// is aborted.
#pragma once

#include <cstddef>
#include <span>

#include "softdev/nccl_kernels/communicator.h"
#include "softdev/nccl_kernels/function.h"

namespace softdev::nccl_kernels {

/// One collective, as one channel does it.
class CollectiveWork {
public:
    CollectiveWork(const Layout& layout, const std::byte* work) : layout_(layout), work_(work) {}

    const std::byte* input() const { return load<const std::byte*>(work_, layout_.input); }
    std::byte* output() const { return load<std::byte*>(work_, layout_.output); }
    int root() const { return load<int>(work_, collective_work::kRoot); }
    bool registered() const { return (flags() & collective_work::kRegistered) != 0; }
    bool profiled() const { return (flags() & collective_work::kProfiled) != 0; }
    /// What the operation needs: a factor, a divisor, which of least and greatest.
    std::uint64_t argument(std::size_t element_bytes) const;

    /// What one channel does of it.
    struct Share {
        std::size_t count = 0;   ///< elements of all channels
        std::size_t offset = 0;  ///< of this channel's elements
        std::size_t elements = 0;
        std::size_t chunk = 0;  ///< elements
    };
    Share share(int channel, Protocol protocol, std::size_t element_bytes) const;

private:
    std::uint32_t flags() const { return load<std::uint32_t>(work_, collective_work::kFlags); }

    const Layout& layout_;
    const std::byte* work_;
};

/// Whether this code does what the function does.
bool supported(const Function& function);

bool run_collective(const Channel& channel, const Function& function, const CollectiveWork& work);
/// All messages of a batch go on together.
bool run_messages(const Channel& channel, std::span<const std::byte* const> works);
/// AllGatherV: broadcasts from several roots in one ring, a chunk of each in turn.
bool run_broadcasts(const Channel& channel, Protocol protocol,
                    std::span<const std::byte* const> works);

}  // namespace softdev::nccl_kernels
