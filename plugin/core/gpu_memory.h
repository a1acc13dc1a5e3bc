// SPDX-License-Identifier: Apache-2.0
// What the core needs where messages lie in a GPU's memory, which no processor may touch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/core/region.h"

namespace deft::net {

// Copies for paths that read and write host memory alone (TCP). Any thread; each call waits until
// what it does is done: some ten microseconds, and what the bus takes for the bytes.
class GpuMemory {
public:
    virtual ~GpuMemory() = default;
    // Before the first copy of this memory, where NCCL does not wait for a message: what the driver
    // makes then may wait for kernels.
    virtual void prepare(const void* gpu) = 0;
    // False: the driver refused; the cause was logged.
    virtual bool put(void* gpu, const void* host, std::size_t bytes) = 0;
    virtual bool get(void* host, const void* gpu, std::size_t bytes) = 0;
    // Makes what devices have written there visible to the GPU. False: the driver cannot.
    virtual bool flush(const void* gpu) = 0;
};

// The same by the device that has written: a read through it comes behind its writes. Of one
// thread at a time.
class Flusher {
public:
    virtual ~Flusher() = default;
    // Where what it reads has to be registered.
    virtual const Domain* domain() const = 0;
    // Begins to read the byte at `address`, which `registration` opens; its number, which grows.
    // 0: it cannot.
    virtual std::uint64_t begin(const Registration& registration, const void* address) = 0;
    // Reads up to this number are done.
    virtual std::uint64_t done() = 0;
    // None that is open will be.
    virtual bool failed() const = 0;
};

}  // namespace deft::net
