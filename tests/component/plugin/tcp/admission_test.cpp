// SPDX-License-Identifier: Apache-2.0
// Who gets in at a listener: the one with the secret, whatever strangers do meanwhile.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <random>

#include "plugin/tcp/tcp_dialer.h"
#include "plugin/tcp/tcp_socket.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

// A blocking client of the listener at link 0.
UniqueFd next(const wire::Handle& handle, const char* from = nullptr) {
    const wire::Endpoint& endpoint = handle.endpoints.entries[0];
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    if (from != nullptr) {
        Address own;
        EXPECT_TRUE(parse_address(from, own));
        const socklen_t size = to_sockaddr(own, 0, storage);
        EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), size), 0);
    }
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
}

// True once the peer has closed this connection (or reset it).
bool closed(const UniqueFd& fd, TcpPair& pair, std::vector<std::byte>* heard = nullptr) {
    const Nanos deadline = steady_now() + kPatience;
    std::byte buffer[1024];
    while (steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return true;
        }
        if (got > 0 && heard != nullptr) {
            heard->insert(heard->end(), buffer, buffer + got);
        }
    }
    return false;
}

wire::Hello hello_for(const wire::Handle& handle) {
    wire::Hello hello;
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.connection = 1234;
    hello.incarnation = 1;
    hello.path = 0;
    hello.paths = 1;
    return hello;
}

void say(const UniqueFd& fd, const wire::Hello& hello) {
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(hello, bytes);
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
}

wire::Handle decoded(const TcpPair& pair) {
    wire::Handle handle;
    EXPECT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
    return handle;
}

void expect_works(TcpPair& pair) {
    ASSERT_TRUE(pair.establish());
    const std::vector<std::byte> data = bytes_of(300001, 3);
    std::vector<std::byte> buffer(400000);
    ASSERT_EQ(pair.transfer(data, buffer), 300001);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
}

TEST(Admission, GarbageIsDropped) {
    TcpPair pair(2);
    const UniqueFd stranger = next(decoded(pair));
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(200, 'x');
    ASSERT_GT(send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, WrongSecretIsDroppedWithoutAnAnswer) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.secret[15] ^= 1;
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    EXPECT_TRUE(closed(stranger, pair, &heard));
    EXPECT_TRUE(heard.empty());
    expect_works(pair);
}

TEST(Admission, UnknownListenerIsDropped) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    ++hello.listener;
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    EXPECT_TRUE(closed(stranger, pair));
    expect_works(pair);
}

TEST(Admission, OtherVersionIsToldOurs) {
    TcpPair pair(1);
    wire::Hello hello = hello_for(decoded(pair));
    hello.version = wire::kVersion + 1;
    const UniqueFd stranger = next(decoded(pair));
    say(stranger, hello);
    std::vector<std::byte> heard;
    ::testing::internal::CaptureStderr();
    const bool ended = closed(stranger, pair, &heard);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(ended);
    // One line a process; this test may be repeated in one.
    static int times = 0;
    EXPECT_EQ(said.find("install the same release on all hosts") != std::string::npos, times++ == 0)
        << said;
    ASSERT_EQ(heard.size(), wire::kWelcomeBytes);
    wire::Welcome welcome;
    EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                           wire::kWelcomeBytes),
                           welcome),
              wire::Decoded::Ok);
    EXPECT_EQ(welcome.answer, wire::Answer::WrongVersion);
    expect_works(pair);
}

TEST(Admission, SecondConnectionToOneListenerIsRefused) {
    TcpPair pair(1);
    ASSERT_TRUE(pair.establish());
    const UniqueFd other = next(decoded(pair));
    say(other, hello_for(decoded(pair)));
    std::vector<std::byte> heard;
    const Nanos deadline = steady_now() + kPatience;
    std::byte buffer[1024];
    while (heard.size() < wire::kWelcomeBytes && steady_now() < deadline) {
        pair.receiver->progress(steady_now());
        const ssize_t got = recv(other.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got > 0) {
            heard.insert(heard.end(), buffer, buffer + got);
        }
    }
    ASSERT_EQ(heard.size(), wire::kWelcomeBytes);
    wire::Welcome welcome;
    EXPECT_EQ(wire::decode(std::span<const std::byte, wire::kWelcomeBytes>(heard.data(),
                                                                           wire::kWelcomeBytes),
                           welcome),
              wire::Decoded::Ok);
    EXPECT_EQ(welcome.answer, wire::Answer::Refused);
}

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

TEST(Admission, SlowHelloRunsIntoItsDeadline) {
    TcpPair pair(1);
    const UniqueFd slow = next(decoded(pair));
    ASSERT_GT(send(slow.get(), "DHEL", 4, MSG_NOSIGNAL), 0);
    std::string problem;
    const auto acceptor = TcpAcceptor::process(pair.device, problem);
    Nanos clock = steady_now();
    const Nanos begin = clock;
    const Nanos deadline = steady_now() + kPatience;
    while (acceptor->pending() == 0 && steady_now() < deadline) {
        (void)pair.listener->accept(clock += 2 * kMillisecond);
    }
    EXPECT_EQ(acceptor->pending(), 1U);
    while (acceptor->pending() == 1 && steady_now() < deadline) {
        (void)pair.listener->accept(clock += 2 * kMillisecond);
    }
    EXPECT_EQ(acceptor->pending(), 0U);
    EXPECT_GE(clock - begin, 5 * kSecond);  // of a clock of its own
    EXPECT_LT(clock - begin, 6 * kSecond);
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

// Whoever could read a hello and says it again is no better off than one who is late.
TEST(Admission, ReplayedHelloDoesNotDisturb) {
    TcpPair pair(1);
    const wire::Hello hello = hello_for(decoded(pair));
    const UniqueFd first = next(decoded(pair));
    say(first, hello);
    const Nanos deadline = steady_now() + kPatience;
    while (pair.receiver == nullptr && steady_now() < deadline) {
        pair.receiver = pair.listener->accept(steady_now());
    }
    ASSERT_NE(pair.receiver, nullptr);
    for (int i = 0; i < 40; ++i) {
        const UniqueFd again = next(decoded(pair));
        say(again, hello);
        EXPECT_TRUE([&] {
            while (steady_now() < deadline) {
                std::byte buffer[1024];
                pair.receiver->progress(steady_now());
                const ssize_t got = recv(again.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
                if (got == 0 || (got < 0 && errno != EAGAIN)) {
                    return true;
                }
            }
            return false;
        }());
    }
    std::vector<std::byte> buffer(100);
    Request* receive = pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    ASSERT_NE(receive, nullptr);
    wire::ChunkHeader header;
    header.chunk.total = header.chunk.chunk_size = header.chunk.length = 3;
    std::array<std::byte, wire::kChunkBytes> bytes;
    wire::encode(header, bytes);
    ASSERT_EQ(send(first.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(send(first.get(), "abc", 3, MSG_NOSIGNAL), 3);
    std::size_t size = 0;
    while (!pair.receiver->test(receive, steady_now(), &size) && steady_now() < deadline) {
        ASSERT_FALSE(pair.receiver->failure());
    }
    EXPECT_EQ(size, 3U);
    EXPECT_EQ(std::memcmp(buffer.data(), "abc", 3), 0);
}

// What the other side hears of a release that does not fit.
TEST(Admission, SenderSaysPlainlyThatVersionsDiffer) {
    const auto device = loopback_device(1);
    std::uint16_t port = 0;
    std::string problem;
    const UniqueFd listener = listen_on(device->links[0].addresses[0], port, problem);
    ASSERT_TRUE(listener) << problem;
    Route route;
    route.candidates = {{device->links[0].addresses[0], {0, port, device->links[0].addresses[0]}}};
    TcpDialer dialer(device, route, wire::Hello{}, TcpDialer::Options{});
    dialer.start(1, steady_now());
    wire::Welcome welcome;
    welcome.version = wire::kVersion + 7;
    std::array<std::byte, wire::kWelcomeBytes> bytes;
    wire::encode(welcome, bytes);
    UniqueFd accepted;
    Connected connected;
    Dialer::Result result = Dialer::Result::Pending;
    const Nanos deadline = steady_now() + kPatience;
    while (result == Dialer::Result::Pending && steady_now() < deadline) {
        if (!accepted) {
            accepted.reset(accept(listener.get(), nullptr, nullptr));
            if (accepted) {
                EXPECT_EQ(send(accepted.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                          static_cast<ssize_t>(bytes.size()));
            }
        }
        result = dialer.poll(steady_now(), connected);
    }
    EXPECT_EQ(result, Dialer::Result::Fatal);
    EXPECT_THAT(dialer.failure(), ::testing::HasSubstr("protocol version 9, this one 2"));
    EXPECT_THAT(dialer.failure(), ::testing::HasSubstr("install the same release"));
}

TEST(Admission, DamagedAndForeignHandlesAreRefused) {
    TcpPair pair(1);
    for (const auto& [at, value] : {std::pair{0, 0}, {4, 77}, {6, 255}}) {
        TcpPair broken(1);
        broken.handle[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
        EXPECT_FALSE(broken.establish());
        EXPECT_NE(broken.result, DEFT_NET_SUCCESS);
    }
    expect_works(pair);
}

TEST(Admission, ForgedAttemptNumberStartsANewOne) {
    TcpPair pair(1);
    wire::set_attempt(pair.handle, 0x4141414141414141);
    expect_works(pair);
}

TEST(Admission, ListenerClosedWithoutAcceptLeavesNothing) {
    std::weak_ptr<TcpAcceptor> acceptor;
    {
        TcpPair pair(2);
        std::string problem;
        acceptor = TcpAcceptor::process(pair.device, problem);
        EXPECT_FALSE(pair.step());
    }
    forget_attempts(steady_now(), true);  // who connects listens, too
    EXPECT_TRUE(acceptor.expired());
}

}  // namespace
}  // namespace deft::net::testing
