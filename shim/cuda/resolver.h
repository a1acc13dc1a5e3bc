// SPDX-License-Identifier: Apache-2.0
// Finds entry points of a loaded libcuda.so.1.
#pragma once

#include <dlfcn.h>
#include <cstdint>
#include <initializer_list>

namespace deft::cuda {

class Resolver {
public:
    // The version whose signatures the shim declares, and the flavour of the default stream:
    // legacy, as NCCL treats a null stream.
    static constexpr int kApiVersion = 12000;
    static constexpr std::uint64_t kLegacyStream = 1;

    explicit Resolver(void* library) : library_(library) {
        v2_ = reinterpret_cast<GetProcAddress2>(::dlsym(library, "cuGetProcAddress_v2"));
        v1_ = reinterpret_cast<GetProcAddress1>(::dlsym(library, "cuGetProcAddress"));
    }

    // `name` is the name without suffix, which cuGetProcAddress (CUDA 11.3) maps by version;
    // `exported` the symbol an older driver has for the same signature.
    template <typename F>
    void find(F& function, const char* name, const char* exported) {
        look(function, name, exported);
        complete_ = complete_ && function != nullptr;
    }
    // May be missing.
    template <typename F>
    void look(F& function, const char* name, const char* exported) {
        void* address = nullptr;
        if (v2_ != nullptr) {
            int status = 0;
            if (v2_(name, &address, kApiVersion, kLegacyStream, &status) != 0) {
                address = nullptr;
            }
        } else if (v1_ != nullptr) {
            if (v1_(name, &address, 11030, kLegacyStream) != 0) {
                address = nullptr;
            }
        }
        for (const char* symbol : {exported, name}) {
            if (address == nullptr) {
                address = ::dlsym(library_, symbol);
            }
        }
        function = reinterpret_cast<F>(address);
    }

    bool complete() const { return complete_; }

private:
    using GetProcAddress2 = int (*)(const char*, void**, int, std::uint64_t, int*);
    using GetProcAddress1 = int (*)(const char*, void**, int, std::uint64_t);

    void* library_;
    GetProcAddress2 v2_ = nullptr;
    GetProcAddress1 v1_ = nullptr;
    bool complete_ = true;
};

}  // namespace deft::cuda
