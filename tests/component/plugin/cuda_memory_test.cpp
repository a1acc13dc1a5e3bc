// SPDX-License-Identifier: Apache-2.0
// Copies from and to a GPU's memory, by the driver of the software device.
#include "plugin/cuda_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deft::net::testing {
namespace {

// As a job that uses the GPU: loaded under the name that the driver has.
void* loaded_driver() {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return library;
}

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(loaded_driver(), name));
    return function == nullptr ? -1 : function(arguments...);
}

TEST(CudaMemory, ItCopiesInAnyThreadAndFlushes) {
    ASSERT_NE(loaded_driver(), nullptr) << ::dlerror();
    void* context = nullptr;
    unsigned long long gpu = 0;
    ASSERT_EQ(call("cuInit", 0U), 0);
    ASSERT_EQ(call("cuDevicePrimaryCtxRetain", &context, 0), 0);
    ASSERT_EQ(call("cuCtxPushCurrent_v2", context), 0);
    ASSERT_EQ(call("cuMemAlloc_v2", &gpu, std::size_t{65536}), 0);
    ASSERT_EQ(call("cuCtxPopCurrent_v2", &context), 0);  // as in a thread of the plugin's
    void* const memory = reinterpret_cast<void*>(gpu);
    CudaMemory* const copies = CudaMemory::process();
    ASSERT_NE(copies, nullptr);
    copies->prepare(memory);
    std::vector<char> from(65536, 'g');
    std::vector<char> to(65536);
    EXPECT_TRUE(copies->put(memory, from.data(), from.size()));
    EXPECT_TRUE(copies->get(to.data(), memory, to.size()));
    EXPECT_EQ(from, to);
    EXPECT_TRUE(copies->flush(memory));
    EXPECT_FALSE(copies->get(to.data(), from.data(), to.size())) << "that is no GPU's";
    void* current = context;
    EXPECT_EQ(call("cuCtxGetCurrent", &current), 0);
    EXPECT_EQ(current, nullptr) << "the thread's context is as it was";
}

}  // namespace
}  // namespace deft::net::testing
