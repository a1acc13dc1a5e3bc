// SPDX-License-Identifier: Apache-2.0
// The few kernels of the executor, loaded from PTX that is part of the library (kernels.cu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shim/cuda/execution.h"

namespace deft::executor {

// Element types the kernels know, with the endings of their names.
enum class Element : std::uint8_t { F32, F64, Bf16, F16 };
inline constexpr std::size_t kElements = 4;
const char* to_string(Element element);
// False for any other ncclDataType_t.
bool element_of(int nccl_type, Element& element);

// The kernels as the driver gets them.
std::string kernels_ptx();

// Sums are formed in double for f64, in float for the others, without fused multiply-add, rounded
// once to nearest even when stored: the same bits on every device.
class Kernels {
public:
    // `context` must be current. Loads the module once per context, for good: unloading may
    // synchronise the device. Launches every kernel once on nothing, because a driver that loads
    // lazily would else do it in a hook.
    bool load(const cuda::Execution& driver, cuda::Context context, cuda::Stream stream,
              std::string& problem);

    // All: asynchronous on the stream, CUDA's result; counts are elements.
    // to = factor * to + from
    int accumulate(Element element, cuda::DevicePointer to, cuda::DevicePointer from, double factor,
                   std::uint64_t count, cuda::Stream stream) const;
    // to = (add ? to : 0) + a * x + b * y + c * z; y and z are not read where null.
    int combine(Element element, cuda::DevicePointer to, cuda::DevicePointer x,
                cuda::DevicePointer y, cuda::DevicePointer z, double a, double b, double c,
                std::uint64_t count, bool add, cuda::Stream stream) const;
    // *square += sum of x^2 over finite values, *not_finite += number of the others. A double and
    // a 64-bit counter in device memory.
    int square(Element element, cuda::DevicePointer x, std::uint64_t count,
               cuda::DevicePointer square, cuda::DevicePointer not_finite,
               cuda::Stream stream) const;
    // out[0..4] += x.x, x.y, y.y, x.z, z.z: five doubles in device memory; then keep = x. What is
    // null of y and z counts as zeros; keep may be z.
    int correlate(Element element, cuda::DevicePointer x, cuda::DevicePointer y,
                  cuda::DevicePointer z, cuda::DevicePointer keep, std::uint64_t count,
                  cuda::DevicePointer out, cuda::Stream stream) const;

private:
    int find(const cuda::Execution& driver);
    int touch(cuda::Stream stream) const;
    int launch(cuda::KernelFunction function, std::uint64_t count, void** parameters,
               cuda::Stream stream) const;

    const cuda::Execution* driver_ = nullptr;
    cuda::Module module_ = nullptr;
    cuda::KernelFunction accumulate_[kElements] = {};
    cuda::KernelFunction combine_[kElements] = {};
    cuda::KernelFunction square_[kElements] = {};
    cuda::KernelFunction correlate_[kElements] = {};
};

}  // namespace deft::executor
