// SPDX-License-Identifier: Apache-2.0
// The product as NCCL opens it: by dlopen, with nothing of deft linked into the host.
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <string>

#include "deft/abi/net.h"

namespace {

std::string g_library;

int entries_of(const char* folder) {
    int count = 0;
    if (DIR* directory = ::opendir(folder)) {
        while (::readdir(directory) != nullptr) {
            ++count;
        }
        ::closedir(directory);
    }
    return count;
}

TEST(Product, LoadsWithEverythingResolved) {
    void* handle = ::dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    using Version = const char* (*)();
    const auto version = reinterpret_cast<Version>(::dlsym(handle, "deft_version"));
    ASSERT_NE(version, nullptr) << ::dlerror();
    const std::string before = version();
    EXPECT_TRUE(before == DEFT_VERSION || before.starts_with(DEFT_VERSION "+")) << before;
    EXPECT_EQ(::dlclose(handle), 0);
    EXPECT_EQ(version(), before) << "it stays loaded: NCCL threads may still be inside";
}

TEST(Product, IsOneObjectHoweverOftenItIsOpened) {
    void* first = ::dlopen(g_library.c_str(), RTLD_LAZY | RTLD_LOCAL);
    void* second = ::dlopen("libnccl-net-deft.so", RTLD_NOW | RTLD_LOCAL);  // found by its soname
    EXPECT_NE(first, nullptr);
    EXPECT_EQ(first, second);
}

TEST(Product, OpeningItStartsNothing) {
    const int threads = entries_of("/proc/self/task");
    const int files = entries_of("/proc/self/fd");
    ASSERT_NE(::dlopen(g_library.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr);
    EXPECT_EQ(entries_of("/proc/self/task"), threads);
    EXPECT_EQ(entries_of("/proc/self/fd"), files);
}

void say_nothing(int, unsigned long, const char*, int, const char*, ...) {}

// NCCL with a tuner does not do all that it does without: see docs/tuner.md. The last of these
// tests, because the plugin is at work from here on.
TEST(Product, ShowsNcclNoTunerThatWouldDoNothing) {
    void* const handle = ::dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr);
    const auto table = [handle](int version) {
        return static_cast<const char* const*>(
            ::dlsym(handle, ("ncclTunerPlugin_v" + std::to_string(version)).c_str()));
    };
    for (int version = 2; version <= 6; ++version) {
        ASSERT_NE(table(version), nullptr) << version;
        EXPECT_STREQ(*table(version), "deft");
    }
    const auto* const net = static_cast<const deft_net_v8_t*>(::dlsym(handle, "ncclNetPlugin_v8"));
    ASSERT_NE(net, nullptr);
    net->init(say_nothing);
    for (int version = 1; version <= 7; ++version) {
        EXPECT_EQ(table(version), nullptr) << version;
    }
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc < 2) {
        return 2;
    }
    g_library = argv[1];
    return RUN_ALL_TESTS();
}
