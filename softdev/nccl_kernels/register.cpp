// SPDX-License-Identifier: Apache-2.0
// Registers the kernels with libcuda when this library is opened (SOFTDEV_KERNELS), and finds out
// at the first launch which release of NCCL is loaded.
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl_kernels/kernel.h"

namespace {

using softdev::nccl_kernels::Release;

constexpr std::size_t kArgumentBytes = 4096;

int loaded_version() {
    // Named by its soname, which finds it also where a framework opened it for itself.
    void* library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
    // The strong name: a preload may stand before the other one.
    void* function = dlsym(library != nullptr ? library : RTLD_DEFAULT, "pncclGetVersion");
    int version = 0;
    if (function != nullptr) {
        reinterpret_cast<int (*)(int*)>(function)(&version);
    }
    return version;
}

Release find_release() {
    const int version = loaded_version();
    Release release;
    release.layout = softdev::nccl_kernels::layout_of(version);
    if (release.layout == nullptr) {
        softdevReport("NCCL's kernels are emulated for 2.27 to 2.30; this library says %d",
                      version);
        throw std::runtime_error("unknown release of NCCL");
    }
    release.functions = softdev::nccl_kernels::list_functions(release.layout->gathers_unequally);
    return release;
}

void launch(const unsigned*, const unsigned*, void** arguments) {
    static const Release release = find_release();
    softdev::nccl_kernels::run_kernel(
        release, static_cast<std::byte*>(arguments[0]),
        [](const char* why) { softdevReport("NCCL kernel: %s", why); });
}

__attribute__((constructor)) void register_kernels() {
    for (const std::string& name : softdev::nccl_kernels::kernel_names()) {
        const std::string mangled =
            "_Z" + std::to_string(name.size()) + name + "24ncclDevKernelArgsStorageILm4096EE";
        softdevRegisterKernelSized(mangled.c_str(), launch, &kArgumentBytes, 1);
    }
}

}  // namespace
