// SPDX-License-Identifier: Apache-2.0
// A path between two processes, and a port that loses its carrier: in a network namespace of its
// own.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "plugin/port_dialer.h"
#include "plugin/port_pairs.h"
#include "tests/component/plugin/verbs/scene.h"
#include "tests/component/plugin/verbs/soft_ports.h"

namespace deft::net::testing {
namespace {

void sh(const char* command) {
    ASSERT_EQ(std::system(command), 0) << command;
}

std::unique_ptr<VerbsPath> meet(End& end, VerbsPath::Role role, int socket) {
    VerbsHandshake handshake(end.domain, kOptions, role, UniqueFd(socket));
    std::unique_ptr<VerbsPath> path;
    EXPECT_TRUE(eventually([&] {
        return go_on(handshake, path) == VerbsHandshake::Result::Connected;
    })) << handshake.failure();
    return path;
}

std::byte pattern(std::size_t i) {
    return static_cast<std::byte>(i * 11 % 253);
}

// The receiving process: lets one message be written, says that it came, and ends without a word.
int receive_one(int socket) {
    End end("far");
    const auto path = meet(end, VerbsPath::Role::Receiver, socket);
    if (path == nullptr || path->grant(end.grant(0, 0, End::kBytes)) != Post::Ok) {
        return 1;
    }
    if (!eventually([&] {
            path->poll(end.told, true);
            return end.told.written.size() == 1;
        })) {
        return 2;
    }
    for (std::size_t i = 0; i < End::kBytes; ++i) {
        if (end.memory[i] != pattern(i)) {
            return 3;
        }
    }
    Control done;
    done.received = done.completed = done.posted = 1;
    if (path->send(done) != Post::Ok || !eventually([&] {
            path->poll(end.told, true);
            return path->drained();
        })) {
        return 4;
    }
    return 0;
}

TEST(VerbsHosts, OneMessageFromProcessToProcess) {
    int both[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    const pid_t child = ::fork();  // before either has opened anything
    if (child == 0) {
        ::close(both[0]);
        ::_exit(receive_one(both[1]));
    }
    ::close(both[1]);
    End end("near");
    for (std::size_t i = 0; i < End::kBytes; ++i) {
        end.memory[i] = pattern(i);
    }
    const auto path = meet(end, VerbsPath::Role::Sender, both[0]);
    ASSERT_NE(path, nullptr);
    ASSERT_TRUE(eventually([&] {
        path->poll(end.told, true);
        return end.told.grants.size() == 1;
    }));
    Chunk chunk;
    chunk.total = chunk.length = chunk.chunk_size = End::kBytes;
    chunk.data = end.memory.data();
    chunk.region = end.region.get();
    chunk.grant = &end.told.grants[0];
    ASSERT_EQ(path->post(chunk), Post::Ok);
    ASSERT_TRUE(eventually([&] {
        path->poll(end.told, true);
        return end.told.acks == 1 && end.told.controls.size() == 1;
    }));
    EXPECT_EQ(end.told.controls[0].completed, 1U);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
    ASSERT_TRUE(eventually([&] {
        path->look_after(steady_now());
        return path->poll(end.told, true) == Path::Poll::Failed;
    }));
    EXPECT_EQ(path->loss(), Path::Loss::Ended) << path->failure();
}

TEST(VerbsHosts, APortThatLosesItsCarrierIsTold) {
    sh("ip link add wire type veth peer name other");
    sh("ip link set other up; ip link set wire up; ip addr add 10.8.0.1/24 dev wire");
    sh("for i in $(seq 600); do ip link show wire | grep -q 'state UP' && exit 0; sleep 0.05; "
       "done; exit 1");
    std::string problem;
    const VerbsLibrary* const library = process_verbs_library(problem);
    ASSERT_NE(library, nullptr) << problem;
    const auto context = VerbsContext::open(*library, "wire", problem);
    ASSERT_NE(context, nullptr) << problem;
    context->look();
    EXPECT_FALSE(context->carrier(1).down);
    sh("ip link set other down");
    ASSERT_TRUE(eventually([&] {
        context->look();
        return context->carrier(1).lost == 1;
    }));
    EXPECT_TRUE(context->carrier(1).down);
    EXPECT_EQ(context->carrier(1).gained, 0U);
    sh("ip link set other up");
    ASSERT_TRUE(eventually([&] {
        context->look();
        return context->carrier(1).gained == 1;
    }));
    EXPECT_FALSE(context->carrier(1).down);
    // One that has no carrier from the beginning.
    sh("ip link set other down");
    ASSERT_TRUE(eventually([&] {
        context->look();
        return context->carrier(1).down;
    }));
    EXPECT_TRUE(VerbsContext::open(*library, "wire", problem)->carrier(1).down);
    EXPECT_EQ(VerbsContext::open(*library, "nobody", problem), nullptr);
    EXPECT_EQ(problem, "libibverbs knows no device nobody");
}

// Behind the test before, which has left it so. Nobody waits for it.
TEST(VerbsHosts, APathOverAPortWithoutCarrierIsNotTried) {
    std::string problem;
    const VerbsPorts ports = open_soft_ports({soft_port("wire", 2)}, problem);
    ASSERT_EQ(ports.size(), 1U) << problem;
    const wire::Port peer = to_wire({ports[0]}).entries[0];
    EXPECT_TRUE(PortDialer::known_dead(*ports[0], peer));
    PortDialer dialer(ports[0], peer, {});
    EXPECT_TRUE(dialer.carrier().down);
    dialer.start(1, steady_now());
    Connected connected;
    EXPECT_EQ(dialer.poll(steady_now(), connected), Dialer::Result::Silent);
    EXPECT_STREQ(dialer.failure(), "its port is not active; tried again in the background");
    sh("ip link set other up");
    ASSERT_TRUE(eventually([&] { return dialer.carrier().gained == 1; }));
    EXPECT_FALSE(PortDialer::known_dead(*ports[0], peer));
}

}  // namespace
}  // namespace deft::net::testing

int main(int argc, char** argv) {
    if (unshare(CLONE_NEWNET) != 0) {
        if (std::getenv("TEST_INSIDE") == nullptr &&
            std::system("unshare -Urn true 2>/dev/null") == 0) {
            setenv("TEST_INSIDE", "1", 1);
            execlp("unshare", "unshare", "-Urn", "--", argv[0], nullptr);
        }
        std::printf("skipped: neither root nor user namespaces\n");
        return 77;
    }
    if (std::system("ip link set lo up") != 0) {
        return 1;
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
