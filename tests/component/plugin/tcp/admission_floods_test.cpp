// SPDX-License-Identifier: Apache-2.0
// Floods of strangers at a listener: they are bounded, and leave the job its descriptors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <random>

#include "tests/component/plugin/tcp/admission.h"

namespace deft::net::testing {
namespace {

TEST(Admission, FloodOfSilentConnectionsIsBounded) {
    TcpPair pair(2);
    std::vector<UniqueFd> silent;
    const wire::Handle handle = decoded(pair);
    for (int i = 0; i < 200; ++i) {
        silent.push_back(next(handle));
        if (i % 3 == 0) {  // half a hello, never finished
            EXPECT_GT(send(silent.back().get(), "DHEL", 4, MSG_NOSIGNAL), 0);
        }
    }
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->strangers() < 100 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        ASSERT_LE(acceptor->pending(), 64U);
    }
    EXPECT_GE(acceptor->strangers(), 100U);
    expect_works(pair);
}

TEST(Admission, WhoFloodsPushesOutHimself) {
    TcpPair pair(1);
    const wire::Handle handle = decoded(pair);
    const UniqueFd slow = next(handle, "127.0.0.8");
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(hello_for(handle), bytes);
    ASSERT_EQ(send(slow.get(), bytes.data(), 64, MSG_NOSIGNAL), 64);
    std::vector<UniqueFd> silent;
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const Nanos deadline = steady_now() + kPatience;
    for (int i = 0; i < 150; ++i) {
        silent.push_back(next(handle, "127.0.0.9"));
        (void)pair.listener->accept(steady_now());
    }
    while (acceptor->strangers() < 80 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
    }
    EXPECT_GE(acceptor->strangers(), 80U);
    ASSERT_EQ(send(slow.get(), bytes.data() + 64, 64, MSG_NOSIGNAL), 64);
    while (pair.receiver == nullptr && steady_now() < deadline) {
        pair.receiver = pair.listener->accept(steady_now());
    }
    EXPECT_NE(pair.receiver, nullptr);  // slow, but not one of the flood
}

// Until killed: port scans, garbage, half hellos, wrong secrets, silence.
[[noreturn]] void flood(const wire::Handle& handle) {
    std::deque<UniqueFd> open;
    std::mt19937 random(7);
    wire::Hello wrong = hello_for(handle);
    wrong.secret[3] ^= 1;
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(wrong, bytes);
    for (;;) {
        const wire::Endpoint& endpoint = handle.endpoints.entries[random() % 2];
        sockaddr_storage storage;
        const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
        UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        (void)::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length);
        const unsigned kind = random() % 4;
        const std::size_t size = kind == 0 ? 0 : kind == 1 ? 5 : bytes.size();
        if (kind == 3) {
            for (std::byte& each : bytes) {
                each = static_cast<std::byte>(random());
            }
        } else {
            wire::encode(wrong, bytes);
        }
        (void)send(fd.get(), bytes.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT);
        open.push_back(std::move(fd));
        if (open.size() > 300) {
            open.pop_front();
        }
    }
}

std::size_t descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(Admission, FloodDuringATransferChangesNothing) {
    TcpPair pair(2);
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const std::size_t before = descriptors();
    const wire::Handle handle = decoded(pair);
    const pid_t flooder = fork();
    if (flooder == 0) {
        flood(handle);
    }
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->strangers() < 20 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
    }
    ASSERT_TRUE(pair.establish());  // in the middle of it
    std::mt19937 random(3);
    const std::size_t limit = before + 64 + 2 * pair.sender->paths() + 8;
    for (unsigned i = 0; (i < 100 || acceptor->strangers() < 500) && steady_now() < deadline; ++i) {
        const std::vector<std::byte> data = bytes_of(random() % 700000, i);
        std::vector<std::byte> buffer(700000);
        ASSERT_EQ(pair.transfer(data, buffer), static_cast<long>(data.size()));
        ASSERT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
        ASSERT_LE(acceptor->pending(), 64U);
        ASSERT_LE(descriptors(), limit);
    }
    EXPECT_GE(acceptor->strangers(), 500U);  // there was a flood
    kill(flooder, SIGKILL);
    waitpid(flooder, nullptr, 0);
}

// Leaves this process so many descriptors more than it has.
class FewDescriptors {
public:
    explicit FewDescriptors(std::size_t more) {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        rlimit few = before_;
        few.rlim_cur = descriptors() + more;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    }
    ~FewDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

private:
    rlimit before_{};
};

// What a process may still open, as the job's own code would.
std::vector<UniqueFd> open_all() {
    std::vector<UniqueFd> all;
    for (UniqueFd fd(dup(0)); fd; fd.reset(dup(0))) {
        all.push_back(std::move(fd));
    }
    return all;
}

// Another process with silent connections to a listener, which says the hello of a sender from
// elsewhere when it is told.
class Strangers {
public:
    Strangers(const wire::Handle& handle, std::size_t silent) {
        int ends[2];
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        const UniqueFd told(ends[0]);
        tell_.reset(ends[1]);
        pid_ = fork();
        if (pid_ != 0) {
            return;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        std::vector<UniqueFd> open;
        for (std::size_t i = 0; i < silent; ++i) {
            open.push_back(next(handle, "127.0.0.9"));
        }
        char word = 0;
        if (read(told.get(), &word, 1) != 1) {
            _exit(1);
        }
        const UniqueFd sender = next(handle, "127.0.0.8");
        say(sender, hello_for(handle));
        for (;;) {
            pause();
        }
    }
    ~Strangers() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    Strangers(const Strangers&) = delete;
    Strangers& operator=(const Strangers&) = delete;
    void say_hello() const { EXPECT_EQ(write(tell_.get(), "h", 1), 1); }

private:
    UniqueFd tell_;
    pid_t pid_ = 0;
};

TEST(Admission, StrangersLeaveTheJobItsDescriptors) {
    TcpPair pair(1);
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const Strangers others(decoded(pair), 150);
    const FewDescriptors few(53);
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->strangers() < 100 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        ASSERT_LE(acceptor->pending(), 16U);
    }
    EXPECT_GE(acceptor->strangers(), 100U);
    EXPECT_GE(acceptor->pending(), 1U);
    EXPECT_GE(open_all().size(), 35U);
    others.say_hello();
    while (pair.receiver == nullptr && steady_now() < deadline) {
        pair.receiver = pair.listener->accept(steady_now());
    }
    EXPECT_NE(pair.receiver, nullptr);
}

// The job has opened all that was left. Who waits for nothing makes way for who has a hello.
TEST(Admission, ALastDescriptorGoesToWhoHasAHello) {
    TcpPair pair(1);
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    const Strangers others(decoded(pair), 3);
    const FewDescriptors few(40);
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->pending() < 3 && steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
    }
    ASSERT_EQ(acceptor->pending(), 3U);
    const std::vector<UniqueFd> all = open_all();
    // Nobody else knocks: they stay.
    for (int i = 0; i < 10; ++i) {
        (void)pair.listener->accept(steady_now());
        usleep(1500);
    }
    EXPECT_EQ(acceptor->pending(), 3U);
    others.say_hello();
    const Nanos clock = steady_now();  // stands still: nobody's time runs out
    for (Nanos at = clock; pair.receiver == nullptr && steady_now() < deadline;
         at = 2 * clock - kMillisecond - at) {
        pair.receiver = pair.listener->accept(at);
    }
    EXPECT_NE(pair.receiver, nullptr);
    EXPECT_LE(acceptor->pending(), 2U);
}

}  // namespace
}  // namespace deft::net::testing
