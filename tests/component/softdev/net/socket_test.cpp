// SPDX-License-Identifier: Apache-2.0
// What Socket does when things go wrong; that it works is shown by rules_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/unique_fd.h"
#include "softdev/net/interfaces.h"
#include "softdev/net/stream.h"
#include "tests/component/softdev/net/captured_log.h"
#include "tests/component/softdev/net/environment.h"

namespace softdev::net {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Socket : public testing::Test {
protected:
    Socket() {
        environment_.set("NCCL_NET_PLUGIN", "none");
        environment_.set("NCCL_SOCKET_IFNAME", "lo");
        environment_.unset("NCCL_NET");
        environment_.unset("SOFTDEV_NCCL_VERSION");
        environment_.unset("NCCL_SOCKET_NTHREADS");
    }
    void SetUp() override { ASSERT_EQ(registry_.open(CommRequest{}, &net_), DEFT_NET_SUCCESS); }
    void TearDown() override { close_all(net_, &made_); }

    void connect() {
        made_ = establish(
            net_, {0}, {0}, [](const std::vector<Handle>& ours) { return ours; },
            after_seconds(30));
    }
    // Tests until done or failed; the result.
    int finish(void* request) {
        int done = 0;
        const Deadline deadline = after_seconds(30);
        while (std::chrono::steady_clock::now() < deadline) {
            const int result = net_->test(request, &done, nullptr);
            if (result != DEFT_NET_SUCCESS || done != 0) {
                return result;
            }
        }
        return -1;
    }
    void* post_receive(void* comm, void* data, size_t bytes) {
        void* request = nullptr;
        int tag = 0;
        void* none = nullptr;
        EXPECT_EQ(net_->irecv(comm, 1, &data, &bytes, &tag, &none, &none, &request),
                  DEFT_NET_SUCCESS);
        return request;
    }
    void* post_send(void* data, size_t bytes) {
        void* request = nullptr;
        EXPECT_EQ(net_->isend(made_.send[0], data, bytes, 0, nullptr, nullptr, &request),
                  DEFT_NET_SUCCESS);
        return request;
    }

    Environment environment_;
    CapturedLog log_;
    NetRegistry registry_;
    CommNet net_;
    Connections made_;
};

TEST_F(Socket, AMessageLargerThanPostedIsRefused) {
    connect();
    char data[200] = {};
    void* send = post_send(data, 200);
    EXPECT_EQ(finish(send), DEFT_NET_SUCCESS);
    void* receive = post_receive(made_.receive[0], data, 100);
    EXPECT_EQ(finish(receive), DEFT_NET_INVALID_USAGE);
    EXPECT_EQ(finish(receive), DEFT_NET_INVALID_USAGE);
    EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("the peer sends 200 bytes, 100"),
                                                   HasSubstr("lo from 127.0.0.1"))));
}

TEST_F(Socket, StrangersAreDroppedAndTheListenerGoesOn) {
    Handle handle{};
    void* listening = nullptr;
    ASSERT_EQ(net_->listen(net_.context(), 0, handle.data(), &listening), DEFT_NET_SUCCESS);
    Address address;
    std::memcpy(&address, handle.data() + 16, sizeof address);  // behind magic and secret
    ASSERT_EQ(address.base.sa_family, AF_INET);
    std::vector<deft::UniqueFd> strangers;
    for (int i = 0; i < 3; ++i) {
        strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(::connect(strangers[i].get(), &address.base, address_length(address)), 0);
    }
    char wrong[64];
    std::memset(wrong, 'x', sizeof wrong);
    ASSERT_EQ(send(strangers[0].get(), wrong, sizeof wrong, MSG_NOSIGNAL), 64);
    ASSERT_EQ(send(strangers[1].get(), wrong, 5, MSG_NOSIGNAL), 5);
    made_.send.resize(1);
    made_.receive.resize(1);
    DeviceHandle* none = nullptr;
    const Deadline deadline = after_seconds(30);
    while ((made_.send[0] == nullptr || made_.receive[0] == nullptr) &&
           std::chrono::steady_clock::now() < deadline) {
        if (made_.send[0] == nullptr) {
            ASSERT_EQ(net_->connect(net_.context(), 0, handle.data(), &made_.send[0], &none),
                      DEFT_NET_SUCCESS);
        }
        if (made_.receive[0] == nullptr) {
            ASSERT_EQ(net_->accept(listening, &made_.receive[0], &none), DEFT_NET_SUCCESS);
        }
    }
    ASSERT_NE(made_.send[0], nullptr);
    ASSERT_NE(made_.receive[0], nullptr);
    EXPECT_EQ(net_->close_listen(listening), DEFT_NET_SUCCESS);
    char out = 'a';
    char in = 0;
    EXPECT_EQ(finish(post_send(&out, 1)), DEFT_NET_SUCCESS);
    EXPECT_EQ(finish(post_receive(made_.receive[0], &in, 1)), DEFT_NET_SUCCESS);
    EXPECT_EQ(in, 'a');
    EXPECT_THAT(log_.warnings(), testing::IsEmpty());
}

TEST_F(Socket, NobodyListensIsAnErrorAfterTheRetries) {
    Handle handle{};
    void* listening = nullptr;
    ASSERT_EQ(net_->listen(net_.context(), 0, handle.data(), &listening), DEFT_NET_SUCCESS);
    ASSERT_EQ(net_->close_listen(listening), DEFT_NET_SUCCESS);
    void* comm = nullptr;
    DeviceHandle* none = nullptr;
    int result = DEFT_NET_SUCCESS;
    const Deadline deadline = after_seconds(60);
    while (result == DEFT_NET_SUCCESS && std::chrono::steady_clock::now() < deadline) {
        result = net_->connect(net_.context(), 0, handle.data(), &comm, &none);
        ASSERT_EQ(comm, nullptr);
        usleep(1000);
    }
    EXPECT_EQ(result, DEFT_NET_REMOTE_ERROR);
    EXPECT_THAT(log_.warnings(),
                ElementsAre(AllOf(HasSubstr("lo to 127.0.0.1<"), HasSubstr("Connection refused"))));
}

TEST_F(Socket, AForeignHandleIsRefused) {
    Handle handle;
    handle.fill(1);
    void* comm = nullptr;
    DeviceHandle* none = nullptr;
    EXPECT_EQ(net_->connect(net_.context(), 0, handle.data(), &comm, &none),
              DEFT_NET_INVALID_ARGUMENT);
}

TEST_F(Socket, AKilledPeerIsNamed) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    Handle handle{};
    void* listening = nullptr;
    ASSERT_EQ(net_->listen(net_.context(), 0, handle.data(), &listening), DEFT_NET_SUCCESS);
    const pid_t child = fork();
    if (child == 0) {
        void* comm = nullptr;
        DeviceHandle* none = nullptr;
        while (comm == nullptr) {
            net_->connect(net_.context(), 0, handle.data(), &comm, &none);
        }
        [[maybe_unused]] const ssize_t said = write(pair[1], "c", 1);
        for (;;) {
            pause();
        }
    }
    DeviceHandle* none = nullptr;
    made_.receive.resize(1);
    const Deadline deadline = after_seconds(30);
    while (made_.receive[0] == nullptr && std::chrono::steady_clock::now() < deadline) {
        ASSERT_EQ(net_->accept(listening, &made_.receive[0], &none), DEFT_NET_SUCCESS);
    }
    ASSERT_NE(made_.receive[0], nullptr);
    net_->close_listen(listening);
    char byte;
    ASSERT_EQ(read(pair[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(finish(post_receive(made_.receive[0], &byte, 1)), DEFT_NET_REMOTE_ERROR);
    EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("lo from 127.0.0.1<"),
                                                   HasSubstr("receive: connection closed"))));
    close(pair[0]);
    close(pair[1]);
}

TEST_F(Socket, OnlyHostMemoryAndThirtyTwoRequests) {
    connect();
    char data[8] = {};
    void* mhandle = nullptr;
    EXPECT_NE(net_->reg_mr(made_.send[0], data, 8, DEFT_NET_PTR_CUDA, &mhandle), DEFT_NET_SUCCESS);
    EXPECT_EQ(net_->reg_mr(made_.send[0], data, 8, DEFT_NET_PTR_HOST, &mhandle), DEFT_NET_SUCCESS);
    for (int i = 0; i < DEFT_NET_MAX_REQUESTS; ++i) {
        EXPECT_NE(post_receive(made_.receive[0], data, 8), nullptr);
    }
    void* request = nullptr;
    void* buffer = data;
    size_t bytes = 8;
    int tag = 0;
    void* none = nullptr;
    EXPECT_EQ(net_->irecv(made_.receive[0], 1, &buffer, &bytes, &tag, &none, &none, &request),
              DEFT_NET_INTERNAL_ERROR);
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("more than 32 requests")));
}

TEST_F(Socket, AWrongNumberOfThreadsIsSaid) {
    environment_.set("NCCL_SOCKET_NTHREADS", "many");
    connect();
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("NCCL_SOCKET_NTHREADS=many is ignored")));
}

}  // namespace
}  // namespace softdev::net
