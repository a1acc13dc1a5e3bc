// SPDX-License-Identifier: Apache-2.0
// Every version of the table, as NCCL calls it: properties, set-up, sizes, depths, teardown.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "deft/abi/net.h"
#include "plugin/tcp/device.h"
#include "tests/component/plugin/tcp_pair.h"

extern "C" {
extern const deft_net_v6_t ncclNetPlugin_v6;
extern const deft_net_v7_t ncclNetPlugin_v7;
extern const deft_net_v8_t ncclNetPlugin_v8;
extern const deft_net_v9_t ncclNetPlugin_v9;
extern const deft_net_v10_t ncclNetPlugin_v10;
extern const deft_net_v11_t ncclNetPlugin_v11;
extern const deft_net_v12_t ncclNetPlugin_v12;
}

namespace deft::net::testing {
namespace {

// The calls that differ between versions, in the newest shape.
template <const auto& table>
struct Calls {
    static constexpr bool kContext = requires { table.finalize; };
    static constexpr bool kConfig =
        std::is_same_v<std::remove_cvref_t<decltype(table)>, deft_net_v10_t>;
    static constexpr bool kFirst =
        std::is_same_v<std::remove_cvref_t<decltype(table)>, deft_net_v6_t>;

    void* context = nullptr;

    int init() {
        if constexpr (kContext) {
            deft_net_comm_config_t config{7};
            return table.init(&context, 1, &config, nullptr, nullptr);
        } else if constexpr (kConfig) {
            return table.init(nullptr, nullptr);
        } else {
            return table.init(nullptr);
        }
    }
    int listen(void* handle, void** comm) {
        if constexpr (kContext) {
            return table.listen(context, 0, handle, comm);
        } else {
            return table.listen(0, handle, comm);
        }
    }
    int connect(void* handle, void** comm) {
        deft_net_device_handle_t* device = nullptr;
        if constexpr (kContext) {
            return table.connect(context, 0, handle, comm, &device);
        } else if constexpr (kConfig) {
            deft_net_comm_config_t config{7};
            return table.connect(0, &config, handle, comm, &device);
        } else if constexpr (kFirst) {
            return table.connect(0, handle, comm);
        } else {
            return table.connect(0, handle, comm, &device);
        }
    }
    int accept(void* listener, void** comm) {
        deft_net_device_handle_t* device = nullptr;
        if constexpr (kFirst) {
            return table.accept(listener, comm);
        } else {
            return table.accept(listener, comm, &device);
        }
    }
    int isend(void* comm, void* data, std::size_t size, void** request) {
        if constexpr (requires { table.isend(comm, data, size, 0, nullptr, nullptr, request); }) {
            return table.isend(comm, data, size, 0, nullptr, nullptr, request);
        } else {
            return table.isend(comm, data, static_cast<int>(size), 0, nullptr, request);
        }
    }
    int irecv(void* comm, void* data, std::size_t size, void** request) {
        int tag = 0;
        void* handle = nullptr;
        if constexpr (requires(std::size_t * s) {
                          table.irecv(comm, 1, &data, s, &tag, &handle, &handle, request);
                      }) {
            return table.irecv(comm, 1, &data, &size, &tag, &handle, &handle, request);
        } else if constexpr (requires(std::size_t * s) {
                                 table.irecv(comm, 1, &data, s, &tag, &handle, request);
                             }) {
            return table.irecv(comm, 1, &data, &size, &tag, &handle, request);
        } else {
            int small = static_cast<int>(size);
            return table.irecv(comm, 1, &data, &small, &tag, &handle, request);
        }
    }
    int finalize() {
        if constexpr (kContext) {
            return table.finalize(context);
        } else {
            return 0;
        }
    }
};

template <const auto& table, class Props>
void check_properties() {
    Props props;
    std::memset(static_cast<void*>(&props), 0xA5, sizeof(props));
    ASSERT_EQ(table.getProperties(0, &props), 0);
    EXPECT_STREQ(props.name, "deft");
    EXPECT_TRUE(props.pciPath == nullptr || props.pciPath[0] == '/');
    EXPECT_EQ(props.ptrSupport, DEFT_NET_PTR_HOST);
    EXPECT_GT(props.speed, 0);
    EXPECT_EQ(props.maxRecvs, 1);
    EXPECT_GT(props.maxComms, 1000);
    EXPECT_GE(props.latency, 0);
    EXPECT_LT(props.latency, 1000);
    EXPECT_NE(props.port, static_cast<int>(0xA5A5A5A5));
    if constexpr (requires { props.regIsGlobal; }) {
        EXPECT_EQ(props.regIsGlobal, 0);
    }
    if constexpr (requires { props.forceFlush; }) {
        EXPECT_EQ(props.forceFlush, 0);
    }
    if constexpr (requires { props.netDeviceType; }) {
        EXPECT_EQ(props.netDeviceType, 0);
        EXPECT_EQ(props.netDeviceVersion, 0);
    }
    if constexpr (requires { props.vProps; }) {
        EXPECT_EQ(props.vProps.ndevs, 1);
        EXPECT_EQ(props.vProps.devs[0], 0);
        EXPECT_GT(props.maxP2pBytes, 0U);
        EXPECT_LT(props.maxP2pBytes, DEFT_NET_MAX_BYTES);
        EXPECT_LT(props.maxCollBytes, DEFT_NET_MAX_BYTES);
    }
    if constexpr (requires { props.maxMultiRequestSize; }) {
        EXPECT_EQ(props.maxMultiRequestSize, 1);
    }
    if constexpr (requires { props.railId; }) {
        EXPECT_EQ(props.railId, -1);
        EXPECT_EQ(props.planeId, -1);
    }
    EXPECT_NE(table.getProperties(1, &props), 0);
}

constexpr std::size_t kBuffer = 1 << 20;
constexpr std::size_t kDepth = 8;

// Messages of all sizes over one connection, as many in flight as NCCL would have.
template <const auto& table>
struct Exchange {
    Calls<table>& calls;
    void* send;
    void* receive;
    std::mt19937& random;
    std::vector<std::byte>& out;
    std::vector<std::byte>& in;
    std::vector<std::size_t> sizes{};
    std::vector<void*> sends{};
    std::vector<void*> receives{};
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::size_t send_done = 0;
    std::size_t received = 0;

    void run(Nanos deadline) {
        static constexpr std::size_t edges[] = {0, 1, 8, 127, 2048, 2049, 65536, 131072, kBuffer};
        for (int i = 0; i < 60; ++i) {
            sizes.push_back(i % 2 == 0 ? edges[random() % std::size(edges)] : random() % kBuffer);
        }
        sends.resize(sizes.size());
        receives.resize(sizes.size());
        while ((received < sizes.size() || send_done < sizes.size()) && steady_now() < deadline) {
            ASSERT_NO_FATAL_FAILURE(post());
            ASSERT_NO_FATAL_FAILURE(test());
        }
        EXPECT_EQ(received, sizes.size());
    }

    void post() {
        if (posted < sizes.size() && posted - received < kDepth && random() % 2 == 0) {
            receives[posted] =
                posted % 3 == 0 ? DEFT_NET_OPTIONAL_RECV_COMPLETION : nullptr;  // newer NCCL's hint
            ASSERT_EQ(calls.irecv(receive, in.data() + posted % kDepth * kBuffer, kBuffer,
                                  &receives[posted]),
                      0);
            ASSERT_NE(receives[posted], DEFT_NET_OPTIONAL_RECV_COMPLETION);
            posted += receives[posted] != nullptr ? 1 : 0;
        }
        if (sent < sizes.size() && sent - send_done < kDepth && random() % 2 == 0) {
            std::byte* data = out.data() + sent % kDepth * kBuffer;
            const auto bytes = bytes_of(sizes[sent], static_cast<unsigned>(sent));
            std::copy(bytes.begin(), bytes.end(), data);
            ASSERT_EQ(calls.isend(send, data, sizes[sent], &sends[sent]), 0);
            sent += sends[sent] != nullptr ? 1 : 0;
        }
    }

    void test() {
        int done = 0;
        int size = -1;
        if (send_done < sent) {
            ASSERT_EQ(table.test(sends[send_done], &done, nullptr), 0);
            send_done += static_cast<std::size_t>(done);
        }
        if (received == posted) {
            return;
        }
        ASSERT_EQ(table.test(receives[received], &done, &size), 0);
        if (done != 0) {
            ASSERT_EQ(static_cast<std::size_t>(size), sizes[received]);
            const auto expected = bytes_of(sizes[received], static_cast<unsigned>(received));
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                                   in.data() + received % kDepth * kBuffer))
                << "message " << received;
            ++received;
        }
    }
};

template <const auto& table>
void run_version(unsigned seed) {
    Calls<table> calls;
    ASSERT_EQ(calls.init(), 0);
    int devices = 0;
    ASSERT_EQ(table.devices(&devices), 0);
    ASSERT_EQ(devices, 1);
    char handle[DEFT_NET_HANDLE_MAXSIZE];
    std::memset(handle, 0xA5, sizeof(handle));
    void* listener = nullptr;
    ASSERT_EQ(calls.listen(handle, &listener), 0);
    void* send = nullptr;
    void* receive = nullptr;
    const Nanos deadline = steady_now() + kPatience;
    while ((send == nullptr || receive == nullptr) && steady_now() < deadline) {
        if (send == nullptr) {
            ASSERT_EQ(calls.connect(handle, &send), 0);
        }
        if (receive == nullptr) {
            ASSERT_EQ(calls.accept(listener, &receive), 0);
        }
    }
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    ASSERT_EQ(table.closeListen(listener), 0);

    std::vector<std::byte> out(kBuffer * kDepth);
    std::vector<std::byte> in(kBuffer * kDepth);
    void* out_handle = nullptr;
    void* in_handle = nullptr;
    ASSERT_EQ(
        table.regMr(send, out.data(), static_cast<int>(out.size()), DEFT_NET_PTR_HOST, &out_handle),
        0);
    ASSERT_EQ(
        table.regMr(receive, in.data(), static_cast<int>(in.size()), DEFT_NET_PTR_HOST, &in_handle),
        0);
    void* no_handle = nullptr;
    EXPECT_NE(table.regMr(receive, in.data(), 1, DEFT_NET_PTR_CUDA, &no_handle), 0);

    std::mt19937 random(seed);
    Exchange<table> exchange{calls, send, receive, random, out, in};
    ASSERT_NO_FATAL_FAILURE(exchange.run(deadline));
    void* flush = &flush;
    int flush_size = 8;
    void* flush_data = in.data();
    EXPECT_EQ(table.iflush(receive, 1, &flush_data, &flush_size, &in_handle, &flush), 0);
    EXPECT_EQ(flush, nullptr);
    EXPECT_EQ(table.deregMr(send, out_handle), 0);
    EXPECT_EQ(table.deregMr(receive, in_handle), 0);
    EXPECT_EQ(table.closeSend(send), 0);
    EXPECT_EQ(table.closeRecv(receive), 0);
    EXPECT_EQ(calls.finalize(), 0);
}

class Abi : public ::testing::TestWithParam<std::size_t> {
protected:
    void SetUp() override { set_process_device(loopback_device(GetParam())); }
    void TearDown() override { set_process_device(nullptr); }
};

TEST_P(Abi, Version6) {
    check_properties<ncclNetPlugin_v6, deft_net_props_v6_t>();
    run_version<ncclNetPlugin_v6>(6);
}
TEST_P(Abi, Version7) {
    check_properties<ncclNetPlugin_v7, deft_net_props_v7_t>();
    run_version<ncclNetPlugin_v7>(7);
}
TEST_P(Abi, Version8) {
    check_properties<ncclNetPlugin_v8, deft_net_props_v8_t>();
    run_version<ncclNetPlugin_v8>(8);
}
TEST_P(Abi, Version9) {
    check_properties<ncclNetPlugin_v9, deft_net_props_v9_t>();
    run_version<ncclNetPlugin_v9>(9);
}
TEST_P(Abi, Version10) {
    check_properties<ncclNetPlugin_v10, deft_net_props_v9_t>();
    run_version<ncclNetPlugin_v10>(10);
}
TEST_P(Abi, Version11) {
    check_properties<ncclNetPlugin_v11, deft_net_props_v11_t>();
    run_version<ncclNetPlugin_v11>(11);
    EXPECT_EQ(ncclNetPlugin_v11.makeVDevice, nullptr);
    EXPECT_EQ(ncclNetPlugin_v11.finalize(nullptr), 0);  // 2.28 calls it after a failed init too
}
TEST_P(Abi, Version12) {
    check_properties<ncclNetPlugin_v12, deft_net_props_v12_t>();
    run_version<ncclNetPlugin_v12>(12);
}

// A job has many communicators, and a line about one of their connections says which.
TEST_P(Abi, ALineNamesNcclsCommunicator) {
    Calls<ncclNetPlugin_v12> calls;
    ASSERT_EQ(calls.init(), 0);
    char handle[DEFT_NET_HANDLE_MAXSIZE] = "";
    void* listener = nullptr;
    ASSERT_EQ(calls.listen(handle, &listener), 0);
    void* send = nullptr;
    void* receive = nullptr;
    const Nanos deadline = steady_now() + kPatience;
    while ((send == nullptr || receive == nullptr) && steady_now() < deadline) {
        ASSERT_EQ(send == nullptr ? calls.connect(handle, &send) : 0, 0);
        ASSERT_EQ(receive == nullptr ? calls.accept(listener, &receive) : 0, 0);
    }
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    // A message that is larger than its buffer ends the connection.
    ::testing::internal::CaptureStderr();
    std::vector<std::byte> out(64), in(8);
    void* sent = nullptr;
    void* received = nullptr;
    int failed = 0, done = 0;
    while (failed == 0 && done == 0 && steady_now() < deadline) {
        failed = sent == nullptr ? calls.isend(send, out.data(), out.size(), &sent) : 0;
        failed = failed == 0 && received == nullptr
                     ? calls.irecv(receive, in.data(), in.size(), &received)
                     : failed;
        failed = failed == 0 && received != nullptr
                     ? ncclNetPlugin_v12.test(received, &done, nullptr)
                     : failed;
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(failed, 0);
    EXPECT_NE(said.find(", communicator 0x1: "), said.npos) << said;
    EXPECT_EQ(ncclNetPlugin_v12.closeListen(listener), 0);
    EXPECT_EQ(ncclNetPlugin_v12.closeSend(send), 0);
    EXPECT_EQ(ncclNetPlugin_v12.closeRecv(receive), 0);
    EXPECT_EQ(calls.finalize(), 0);
}

INSTANTIATE_TEST_SUITE_P(Links, Abi, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace deft::net::testing
