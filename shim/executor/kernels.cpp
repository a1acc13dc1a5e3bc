// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/kernels.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "deft/abi/nccl.h"

namespace deft::executor {
namespace {

// Made from kernels.cu by regenerate_ptx.sh, then by pack_ptx.py.
#include "shim/kernels_packed.inc"

// A symbol is a character, or stands for two symbols before it.
void unpack(unsigned char symbol, std::string& text) {
    constexpr unsigned char kFirstPair = 0x80;
    if (symbol < kFirstPair) {
        text.push_back(static_cast<char>(symbol));
        return;
    }
    unpack(kPtxPairs[symbol - kFirstPair][0], text);
    unpack(kPtxPairs[symbol - kFirstPair][1], text);
}

constexpr unsigned kThreads = 256;
// Enough to fill the memory bandwidth, few enough to leave the job its processors.
constexpr std::uint64_t kMostBlocks = 512;
constexpr std::uint64_t kPerThread = 8;

}  // namespace

std::string kernels_ptx() {
    std::string text;
    text.reserve(kPtxLength);
    for (const unsigned char symbol : kPtxSymbols) {
        unpack(symbol, text);
    }
    return text;
}

const char* to_string(Element element) {
    switch (element) {
        case Element::F32:
            return "f32";
        case Element::F64:
            return "f64";
        case Element::Bf16:
            return "bf16";
        case Element::F16:
            return "f16";
    }
    return "?";
}

bool element_of(int nccl_type, Element& element) {
    switch (nccl_type) {
        case DEFT_NCCL_FLOAT32:
            element = Element::F32;
            return true;
        case DEFT_NCCL_FLOAT64:
            element = Element::F64;
            return true;
        case DEFT_NCCL_BFLOAT16:
            element = Element::Bf16;
            return true;
        case DEFT_NCCL_FLOAT16:
            element = Element::F16;
            return true;
        default:
            return false;
    }
}

bool Kernels::load(const cuda::Execution& driver, cuda::Context context, cuda::Stream stream,
                   std::string& problem) {
    struct Loaded {
        const cuda::Execution* driver;
        cuda::Context context;
        Kernels kernels;
    };
    static Mutex mutex;
    // One per device; outlives everything.
    static auto* const loaded DEFT_PT_GUARDED_BY(mutex) = new std::vector<Loaded>();
    const MutexLock lock(mutex);
    for (const Loaded& known : *loaded) {
        if (known.driver == &driver && known.context == context) {
            *this = known.kernels;
            return true;
        }
    }
    int result = find(driver);
    if (result == cuda::kSuccess) {
        result = touch(stream);
    }
    if (result != cuda::kSuccess) {
        problem =
            "the driver does not take the kernels (CUDA error " + std::to_string(result) + ")";
        return false;
    }
    loaded->push_back({&driver, context, *this});
    return true;
}

int Kernels::find(const cuda::Execution& driver) {
    driver_ = &driver;
    int result = driver.ModuleLoadData(&module_, kernels_ptx().c_str());
    for (std::size_t e = 0; e < kElements; ++e) {
        const std::string ending = std::string("_") + to_string(static_cast<Element>(e));
        const auto one = [&](cuda::KernelFunction& function, const char* name) {
            if (result == cuda::kSuccess) {
                result = driver.ModuleGetFunction(&function, module_, (name + ending).c_str());
            }
        };
        one(accumulate_[e], "deft_accumulate");
        one(combine_[e], "deft_combine");
        one(square_[e], "deft_square");
        one(correlate_[e], "deft_correlate");
    }
    return result;
}

int Kernels::touch(cuda::Stream stream) const {
    int result = cuda::kSuccess;
    for (std::size_t e = 0; e < kElements && result == cuda::kSuccess; ++e) {
        const auto element = static_cast<Element>(e);
        result = accumulate(element, 0, 0, 1, 0, stream);
        result = result != cuda::kSuccess ? result : square(element, 0, 0, 0, 0, stream);
        result = result != cuda::kSuccess ? result
                                          : combine(element, 0, 0, 0, 0, 1, 0, 0, 0, false, stream);
        result = result != cuda::kSuccess ? result : correlate(element, 0, 0, 0, 0, 0, 0, stream);
    }
    return result;
}

int Kernels::launch(cuda::KernelFunction function, std::uint64_t count, void** parameters,
                    cuda::Stream stream) const {
    const std::uint64_t wanted = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
    const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(wanted, 1, kMostBlocks));
    return driver_->LaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters,
                                 nullptr);
}

int Kernels::accumulate(Element element, cuda::DevicePointer to, cuda::DevicePointer from,
                        double factor, std::uint64_t count, cuda::Stream stream) const {
    void* parameters[] = {&to, &from, &factor, &count};
    return launch(accumulate_[static_cast<std::size_t>(element)], count, parameters, stream);
}

int Kernels::combine(Element element, cuda::DevicePointer to, cuda::DevicePointer x,
                     cuda::DevicePointer y, cuda::DevicePointer z, double a, double b, double c,
                     std::uint64_t count, bool add, cuda::Stream stream) const {
    unsigned add_flag = add ? 1 : 0;
    void* parameters[] = {&to, &x, &y, &z, &a, &b, &c, &count, &add_flag};
    return launch(combine_[static_cast<std::size_t>(element)], count, parameters, stream);
}

int Kernels::square(Element element, cuda::DevicePointer x, std::uint64_t count,
                    cuda::DevicePointer square, cuda::DevicePointer not_finite,
                    cuda::Stream stream) const {
    void* parameters[] = {&x, &count, &square, &not_finite};
    return launch(square_[static_cast<std::size_t>(element)], count, parameters, stream);
}

int Kernels::correlate(Element element, cuda::DevicePointer x, cuda::DevicePointer y,
                       cuda::DevicePointer z, cuda::DevicePointer keep, std::uint64_t count,
                       cuda::DevicePointer out, cuda::Stream stream) const {
    void* parameters[] = {&x, &y, &z, &keep, &count, &out};
    return launch(correlate_[static_cast<std::size_t>(element)], count, parameters, stream);
}

}  // namespace deft::executor
