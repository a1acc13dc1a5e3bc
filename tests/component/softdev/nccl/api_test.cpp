// SPDX-License-Identifier: Apache-2.0
// What the library answers without any communicator; where a real libnccl.so.2 is named in
// SOFTNCCL_TEST_REAL, it is asked the same questions.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace softdev {
namespace {

// Every function nccl.h declares, without the p.
std::set<std::string> functions_of_header() {
    std::ifstream file(SOFTNCCL_TEST_HEADER);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::set<std::string> names;
    const std::regex pattern("p(nccl[A-Z][A-Za-z]+)\\s*\\(");
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
        names.insert((*at)[1]);
    }
    return names;
}

// Dynamic symbols by name with nm's letter.
std::map<std::string, char> symbols_of(const char* path) {
    std::map<std::string, char> symbols;
    FILE* pipe = popen(("nm -D --defined-only '" + std::string(path) + "'").c_str(), "r");
    char address[32], kind[8], name[512];
    while (pipe != nullptr && std::fscanf(pipe, "%31s %7s %511s", address, kind, name) == 3) {
        symbols[name] = kind[0];
    }
    if (pipe != nullptr) {
        pclose(pipe);
    }
    return symbols;
}

TEST(Symbols, EveryFunctionOfTheHeaderExistsWeakAndStrong) {
    const auto functions = functions_of_header();
    ASSERT_GE(functions.size(), 40u);
    const auto symbols = symbols_of(SOFTNCCL_TEST_LIBRARY);
    for (const std::string& name : functions) {
        ASSERT_TRUE(symbols.contains(name)) << name;
        EXPECT_EQ(symbols.at(name), 'W') << name;
        EXPECT_EQ(symbols.at("p" + name), 'T') << name;
        EXPECT_NE(dlsym(RTLD_DEFAULT, name.c_str()), nullptr);
        EXPECT_EQ(dlsym(RTLD_DEFAULT, name.c_str()), dlsym(RTLD_DEFAULT, ("p" + name).c_str()))
            << name;
    }
    for (const auto& [name, kind] : symbols) {
        EXPECT_TRUE(name.starts_with("nccl") || name.starts_with("pnccl")) << "exports " << name;
    }
}

TEST(Version, IsTheEmulatedOne) {
    int version = 0;
    ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
    EXPECT_EQ(version, 22809);
    EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);
    setenv("SOFTDEV_NCCL_VERSION", "23007", 1);
    ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
    EXPECT_EQ(version, 23007);
    unsetenv("SOFTDEV_NCCL_VERSION");
}

TEST(UniqueId, HasNcclsLayout) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    uint16_t family = 0;
    uint16_t port = 0;
    std::memcpy(&family, id.internal + 8, 2);
    std::memcpy(&port, id.internal + 10, 2);
    EXPECT_TRUE(family == 2 || family == 10);
    EXPECT_NE(port, 0);
    for (int i = 36; i < NCCL_UNIQUE_ID_BYTES; ++i) {
        EXPECT_EQ(id.internal[i], 0) << i;
    }
    ncclUniqueId other;
    ASSERT_EQ(ncclGetUniqueId(&other), ncclSuccess);
    EXPECT_NE(std::memcmp(&id, &other, sizeof id), 0);
    EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
}

TEST(UniqueId, ComesFromTheEnvironment) {
    setenv("NCCL_COMM_ID", "127.0.0.1:23456", 1);
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    const unsigned char expected[] = {0x80, 2, 0x80, 2,    0x80, 2, 0x80, 2,
                                      2,    0, 0x5b, 0xa0, 127,  0, 0,    1};
    EXPECT_EQ(std::memcmp(id.internal, expected, sizeof expected), 0);
    setenv("NCCL_COMM_ID", "nonsense", 1);
    EXPECT_EQ(ncclGetUniqueId(&id), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("nonsense"), std::string::npos);
    unsetenv("NCCL_COMM_ID");
}

TEST(UniqueId, NamesAMissingInterface) {
    setenv("NCCL_SOCKET_IFNAME", "nosuch0", 1);
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("nosuch0"), std::string::npos);
    unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(Group, ErrorsAreStickyUntilTheEnd) {
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, nullptr, nullptr),
              ncclInvalidArgument);
    EXPECT_STREQ(ncclGetLastError(nullptr), "AllReduce : comm argument is NULL");
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
}

TEST(Group, SimulateEndLaunchesNothing) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
    EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT);
}

TEST(NullCommunicator, GivesNcclsCodes) {
    int out = 0;
    ncclResult_t async = ncclSuccess;
    EXPECT_EQ(ncclCommCount(nullptr, &out), ncclInvalidArgument);
    EXPECT_EQ(ncclCommUserRank(nullptr, &out), ncclInvalidArgument);
    EXPECT_EQ(ncclCommCuDevice(nullptr, &out), ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(nullptr, &async), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(nullptr), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(nullptr), ncclSuccess);
    EXPECT_EQ(ncclCommFinalize(nullptr), ncclSuccess);
    EXPECT_EQ(ncclBroadcast(nullptr, nullptr, 1, ncclFloat32, 0, nullptr, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclSend(nullptr, 1, ncclFloat32, 0, nullptr, nullptr), ncclInvalidArgument);
}

// The same questions to a real library.
class RealLibrary : public ::testing::Test {
protected:
    void SetUp() override {
        const char* path = std::getenv("SOFTNCCL_TEST_REAL");
        if (path == nullptr || *path == '\0') {
            path = "/usr/local/cuda/lib/libnccl.so.2";
        }
        real_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (real_ == nullptr) {
            GTEST_SKIP() << "no real NCCL: " << dlerror();
        }
        int version = 0;
        function<ncclResult_t (*)(int*)>("pncclGetVersion")(&version);
        if (version / 100 != 228) {
            GTEST_SKIP() << "the real NCCL is " << version << ", not 2.28";
        }
    }
    template <class F>
    F function(const std::string& name) {
        return reinterpret_cast<F>(dlsym(real_, name.c_str()));
    }
    void* real_ = nullptr;
};

TEST_F(RealLibrary, HasTheSameErrorTexts) {
    const auto text = function<const char* (*)(ncclResult_t)>("pncclGetErrorString");
    ASSERT_NE(text, nullptr);
    for (int code = -1; code <= ncclNumResults + 1; ++code) {
        EXPECT_STREQ(ncclGetErrorString(static_cast<ncclResult_t>(code)),
                     text(static_cast<ncclResult_t>(code)))
            << code;
    }
}

TEST_F(RealLibrary, GivesTheSameGroupCodes) {
    const auto start = function<ncclResult_t (*)()>("pncclGroupStart");
    const auto end = function<ncclResult_t (*)()>("pncclGroupEnd");
    const auto simulate = function<ncclResult_t (*)(ncclSimInfo_t*)>("pncclGroupSimulateEnd");
    const auto all_reduce = function<decltype(&ncclAllReduce)>("pncclAllReduce");
    const auto last = function<const char* (*)(ncclComm_t)>("pncclGetLastError");
    EXPECT_EQ(ncclGroupEnd(), end());
    EXPECT_EQ(ncclGroupStart(), start());
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, nullptr, nullptr),
              all_reduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, nullptr, nullptr));
    EXPECT_STREQ(ncclGetLastError(nullptr), last(nullptr));
    EXPECT_EQ(ncclGroupEnd(), end());
    ncclSimInfo_t ours = NCCL_SIM_INFO_INITIALIZER;
    ncclSimInfo_t theirs = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_EQ(ncclGroupStart(), start());
    EXPECT_EQ(ncclGroupSimulateEnd(&ours), simulate(&theirs));
    EXPECT_EQ(ours.estimatedTime, theirs.estimatedTime);
}

TEST_F(RealLibrary, GivesTheSameCodesForNull) {
    const auto count = function<decltype(&ncclCommCount)>("pncclCommCount");
    const auto async = function<decltype(&ncclCommGetAsyncError)>("pncclCommGetAsyncError");
    const auto destroy = function<decltype(&ncclCommDestroy)>("pncclCommDestroy");
    const auto abort = function<decltype(&ncclCommAbort)>("pncclCommAbort");
    const auto finalize = function<decltype(&ncclCommFinalize)>("pncclCommFinalize");
    const auto red = function<decltype(&ncclRedOpDestroy)>("pncclRedOpDestroy");
    int out = 0;
    ncclResult_t result;
    EXPECT_EQ(ncclCommCount(nullptr, &out), count(nullptr, &out));
    EXPECT_EQ(ncclCommGetAsyncError(nullptr, &result), async(nullptr, &result));
    EXPECT_EQ(ncclCommDestroy(nullptr), destroy(nullptr));
    EXPECT_EQ(ncclCommAbort(nullptr), abort(nullptr));
    EXPECT_EQ(ncclCommFinalize(nullptr), finalize(nullptr));
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, nullptr), red(ncclSum, nullptr));
}

TEST_F(RealLibrary, MakesTheSameKindOfId) {
    const auto make = function<decltype(&ncclGetUniqueId)>("pncclGetUniqueId");
    setenv("NCCL_COMM_ID", "127.0.0.1:23456", 1);
    ncclUniqueId ours;
    ncclUniqueId theirs;
    EXPECT_EQ(ncclGetUniqueId(&ours), make(&theirs));
    EXPECT_EQ(std::memcmp(&ours, &theirs, sizeof ours), 0);
    unsetenv("NCCL_COMM_ID");
}

}  // namespace
}  // namespace softdev
