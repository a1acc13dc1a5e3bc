// SPDX-License-Identifier: Apache-2.0
// The stand-in libibverbs that the code under test has opened.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace deft::net::testing {

// What the stand-in has beyond libibverbs (softdev/verbs/softverbs.h), in the library that was
// opened.
template <class Function>
Function* softverbs(const char* name) {
    void* const library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

class Faults {
public:
    explicit Faults(const char* text) {
        EXPECT_EQ(softverbs<int(const char*)>("softverbs_set_faults")(text), 0);
    }
    ~Faults() { softverbs<int(const char*)>("softverbs_set_faults")(""); }
    Faults(const Faults&) = delete;
    Faults& operator=(const Faults&) = delete;
};

inline long injected(const char* fault) {
    return softverbs<long(const char*)>("softverbs_injected")(fault);
}

inline unsigned long violations() {
    return softverbs<unsigned long()>("softverbs_violations")();
}

}  // namespace deft::net::testing
