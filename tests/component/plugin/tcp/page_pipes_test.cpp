// SPDX-License-Identifier: Apache-2.0
// Bytes that are sent where they lie: whole, in order, and not after the job has taken them back.
#include "plugin/tcp/page_pipes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <tuple>

#include "plugin/tcp/tcp_path.h"
#include "tests/component/plugin/tcp/connected_sockets.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

using Bytes = std::vector<std::byte>;

// Two ends of a TCP connection, the sending one as paths have it.
struct Ends {
    UniqueFd from;
    UniqueFd to;

    Ends() {
        std::tie(from, to) = connected_sockets();
        EXPECT_EQ(fcntl(from.get(), F_SETFL, O_NONBLOCK), 0);
    }
};

class Pages : public ::testing::Test {
protected:
    void SetUp() override {
        pipes_ = PagePipes::process("on");
        if (pipes_ == nullptr) {
            GTEST_SKIP() << "this host has no pipes for us";
        }
    }
    void TearDown() override { PagePipes::begin_anew(); }
    std::shared_ptr<PagePipes> pipes_;
};

// Sockets fill up, so that pages come back out of a pipe; pieces begin and end anywhere.
TEST_F(Pages, ArriveWholeOnEverySocket) {
    std::mt19937 random(1);
    const Bytes data = bytes_of(8 << 20, 3);
    std::array<Ends, 3> ends;
    std::array<Bytes, 3> sent;
    std::array<Bytes, 3> received;
    std::array<std::size_t, 3> full{};
    Bytes buffer(1 << 18);
    const auto drain = [&](std::size_t which) {
        const ssize_t got = recv(ends[which].to.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        received[which].insert(received[which].end(), buffer.begin(),
                               buffer.begin() + std::max<ssize_t>(got, 0));
    };
    for (int i = 0; i < 600; ++i) {
        const std::size_t which = random() % ends.size();
        const std::size_t size = 1 + random() % (1 << (10 + random() % 11));
        const std::byte* const at = data.data() + random() % (data.size() - size);
        for (std::size_t done = 0; done < size;) {
            const ssize_t n = pipes_->send(ends[which].from.get(), at + done, size - done);
            if (n < 0) {
                ASSERT_EQ(errno, EAGAIN);
                ++full[which];
                drain(which);
                continue;
            }
            sent[which].insert(sent[which].end(), at + done, at + done + n);
            done += static_cast<std::size_t>(n);
        }
    }
    for (std::size_t which = 0; which < ends.size(); ++which) {
        const Nanos deadline = steady_now() + kPatience;
        while (received[which].size() < sent[which].size() && steady_now() < deadline) {
            drain(which);
        }
        EXPECT_TRUE(received[which] == sent[which]);
        EXPECT_GT(full[which], 0U) << "no socket was ever full: this shows little";
    }
}

volatile std::sig_atomic_t signals = 0;

TEST_F(Pages, RaiseNoSignalOnADeadConnection) {
    struct sigaction counting {};
    counting.sa_handler = [](int) { signals = signals + 1; };
    struct sigaction before {};
    ASSERT_EQ(sigaction(SIGPIPE, &counting, &before), 0);
    sigset_t pipe;
    sigset_t pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const Bytes data(1 << 16);
    Ends ends;
    ASSERT_EQ(shutdown(ends.from.get(), SHUT_WR), 0);

    EXPECT_EQ(pipes_->send(ends.from.get(), data.data(), data.size()), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_EQ(signals, 0);

    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &pipe, nullptr), 0);
    EXPECT_EQ(pipes_->send(ends.from.get(), data.data(), data.size()), -1);
    ASSERT_EQ(sigpending(&pending), 0);
    EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);

    raise(SIGPIPE);  // the job's own
    EXPECT_EQ(pipes_->send(ends.from.get(), data.data(), data.size()), -1);
    ASSERT_EQ(sigpending(&pending), 0);
    EXPECT_EQ(sigismember(&pending, SIGPIPE), 1);
    ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr), 0);
    EXPECT_EQ(signals, 1);
    ASSERT_EQ(sigaction(SIGPIPE, &before, nullptr), 0);
}

// Memory of the kernel's that can be read, but has no pages to refer to, like some devices'.
std::byte* memory_without_pages() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("[vvar]") != std::string::npos) {
            return reinterpret_cast<std::byte*>(std::stoull(line, nullptr, 16));
        }
    }
    return nullptr;
}

TEST_F(Pages, SayWhereThereAreNone) {
    Ends ends;
    const std::byte* const memory = memory_without_pages();
    if (memory == nullptr) {
        GTEST_SKIP() << "no [vvar] here";
    }
    EXPECT_EQ(pipes_->send(ends.from.get(), memory, 4096), -1);
    EXPECT_EQ(errno, ENOTSUP);
}

// One call to the kernel gives the socket sixteen pages after sixteen pages.
TEST_F(Pages, RaiseNoSignalWhereAConnectionDiesHalfway) {
    struct sigaction counting {};
    counting.sa_handler = [](int) { signals = signals + 1; };
    struct sigaction before {};
    ASSERT_EQ(sigaction(SIGPIPE, &counting, &before), 0);
    signals = 0;
    const Bytes data(1 << 18);
    for (int i = 0; i < 200; ++i) {
        Ends ends;
        std::atomic<bool> begun{false};
        std::thread ending([&] {
            Bytes buffer(1 << 16);
            while (!begun) {
            }
            for (int reads = 0; reads < i % 20; ++reads) {
                (void)recv(ends.to.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
            }
            shutdown(ends.from.get(), SHUT_RDWR);
        });
        const Nanos deadline = steady_now() + kPatience;
        begun = true;
        while (steady_now() < deadline &&
               (pipes_->send(ends.from.get(), data.data(), data.size()) > 0 || errno == EAGAIN)) {
        }
        ending.join();
    }
    EXPECT_EQ(signals, 0);
    ASSERT_EQ(sigaction(SIGPIPE, &before, nullptr), 0);
}

// What splice(2) says of a socket that is to be appended to stands for every such refusal.
TEST_F(Pages, AreCopiedWhereTheKernelRefuses) {
    for (const bool refused : {false, true}) {
        Ends ends;
        ASSERT_EQ(fcntl(ends.from.get(), F_SETFL, O_NONBLOCK | (refused ? O_APPEND : 0)), 0);
        TcpPath::Options options;
        options.pages = pipes_;
        TcpPath path(std::move(ends.from), TcpPath::Role::Sender, "test", options);
        const Bytes data = bytes_of(100000, 5);
        Chunk chunk;
        chunk.total = data.size();
        chunk.chunk_size = chunk.length = static_cast<std::uint32_t>(data.size());
        chunk.data = data.data();
        for (int i = 0; i < 2; ++i) {
            ASSERT_EQ(path.post(chunk), Post::Ok) << path.failure();
            Bytes got(wire::kChunkBytes + data.size());
            ASSERT_EQ(recv(ends.to.get(), got.data(), got.size(), MSG_WAITALL),
                      static_cast<ssize_t>(got.size()));
            EXPECT_TRUE(std::equal(data.begin(), data.end(), got.begin() + wire::kChunkBytes));
        }
        path.close(0);
    }
}

// This thread's calls of this number fail from now on, as in a sandbox. False where none can be
// made.
bool deny(long number, int error) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{4, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0;
}

// Sends some chunks over a path of its own, in a thread of its own to which a call is denied.
void send_without(long number, int error, const std::shared_ptr<PagePipes>& pipes, bool& denied) {
    Ends ends;
    constexpr int kChunks = 12;
    constexpr std::size_t kSize = 100000;
    Bytes got;
    std::thread sender([&] {
        denied = deny(number, error);
        TcpPath::Options options;
        options.pages = pipes;
        TcpPath path(std::move(ends.from), TcpPath::Role::Sender, "test", options);
        Chunk chunk;
        chunk.total = kSize;
        chunk.chunk_size = chunk.length = kSize;
        const Nanos deadline = steady_now() + kPatience;
        std::vector<Bytes> data;
        for (unsigned i = 0; i < kChunks; ++i) {
            data.push_back(bytes_of(kSize, i));
            chunk.data = data.back().data();
            Post posted = Post::Again;
            while (posted == Post::Again && steady_now() < deadline) {
                posted = path.post(chunk);
            }
            ASSERT_EQ(posted, Post::Ok) << path.failure();
        }
        path.close(kPatience);
    });
    Bytes buffer(1 << 16);
    for (ssize_t n = 1; n > 0;) {
        n = recv(ends.to.get(), buffer.data(), buffer.size(), 0);
        got.insert(got.end(), buffer.begin(), buffer.begin() + std::max<ssize_t>(n, 0));
    }
    sender.join();
    ASSERT_EQ(got.size(), kChunks * (wire::kChunkBytes + kSize));
    for (unsigned i = 0; i < kChunks; ++i) {
        const Bytes sent = bytes_of(kSize, i);
        const auto at = got.begin() + static_cast<std::ptrdiff_t>(i * (wire::kChunkBytes + kSize) +
                                                                  wire::kChunkBytes);
        EXPECT_TRUE(std::equal(sent.begin(), sent.end(), at)) << i;
    }
}

// Whatever number a sandbox has for it, those of broken connections included.
TEST_F(Pages, AreCopiedWhereASandboxForbidsTheCalls) {
    for (const long number : {SYS_vmsplice, SYS_splice}) {
        for (const int error : {EACCES, EPERM, ENOSYS, EINVAL, EPIPE, ECONNRESET, ETIMEDOUT,
                                EOPNOTSUPP, EBUSY, EPROTO, EAGAIN, ENOMEM}) {
            SCOPED_TRACE(std::string(number == SYS_splice ? "splice " : "vmsplice ") +
                         std::strerror(error));
            PagePipes::begin_anew();
            bool denied = false;
            send_without(number, error, pipes_, denied);
            if (!denied) {
                GTEST_SKIP() << "no seccomp here";
            }
            // What memory is short of may come back; the other is tried once in a process.
            const bool passes = error == ENOMEM || (error == EAGAIN && number == SYS_vmsplice);
            EXPECT_EQ(PagePipes::given_up(), !passes);
        }
    }
    EXPECT_EQ(PagePipes::process("on") == nullptr, PagePipes::given_up());
}

TEST_F(Pages, AreCopiedInAForkedChild) {
    Ends ends;
    const Bytes data(1 << 16);
    const pid_t child = fork();
    if (child == 0) {
        const ssize_t sent = pipes_->send(ends.from.get(), data.data(), data.size());
        _exit(sent == -1 && errno == EBUSY ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_GT(pipes_->send(ends.from.get(), data.data(), data.size()), 0);
}

// As a sandbox does. In a process of its own: it stays so.
TEST(PagePipes, AreNotTakenWhereTheKernelDoesNotShowThatItTakesManyPages) {
    if (!PagePipes::takes_many()) {
        GTEST_SKIP() << "this kernel takes them one by one";
    }
    EXPECT_NE(PagePipes::process("auto"), nullptr);
    const pid_t child = fork();
    if (child == 0) {
        sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_splice, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog program{4, code};
        const bool barred = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
        _exit(!barred ? 77 : PagePipes::takes_many() ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (status == 77 << 8) {
        GTEST_SKIP() << "no seccomp here";
    }
    EXPECT_EQ(status, 0);
}

TEST(PagePipes, AreTakenByKernelsKnownToTakeMany) {
    utsname name{};
    int major = 0;
    int minor = 0;
    ASSERT_EQ(uname(&name), 0);
    ASSERT_EQ(std::sscanf(name.release, "%d.%d", &major, &minor), 2);
    if (major < 6 || (major == 6 && minor < 5)) {
        GTEST_SKIP() << "Linux " << name.release << " may or may not";
    }
    EXPECT_TRUE(PagePipes::takes_many());
}

TEST(PagePipes, AreOneForTheProcessAndNoneWhereSwitchedOff) {
    const std::shared_ptr<PagePipes> held = PagePipes::process("on");
    EXPECT_EQ(PagePipes::process("on"), held);
    EXPECT_EQ(PagePipes::process("off"), nullptr);
}

// Eight large messages on their way, of which the receiver has looked at none.
struct UnderWay {
    TcpPair pair;
    Bytes data;
    std::vector<Bytes> buffers;
    std::vector<Request*> sends;
    std::vector<Request*> receives;

    explicit UnderWay(std::size_t links, const char* zerocopy = "on")
        : pair(links, kSecond, options(zerocopy)), data(bytes_of(kSize, 1)) {
        EXPECT_TRUE(pair.establish());
        buffers.assign(8, Bytes(kSize));
        for (Bytes& buffer : buffers) {
            receives.push_back(
                pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now()));
        }
        const Nanos deadline = steady_now() + kPatience;
        while (sends.size() < buffers.size() && steady_now() < deadline) {
            pair.sender->progress(steady_now());
            Request* const send = pair.sender->isend(data.data(), data.size(), steady_now());
            if (send != nullptr) {
                sends.push_back(send);
            }
        }
        EXPECT_EQ(sends.size(), buffers.size());
        for (int i = 0; i < 100; ++i) {
            pair.sender->progress(steady_now());
        }
    }
    // What the job does with memory it has taken back.
    void overwrite() { std::fill(data.begin(), data.end(), std::byte{0xee}); }
    // Whatever still completes at the receiver is what was sent.
    void expect_nothing_else() {
        const Bytes sent = bytes_of(kSize, 1);
        std::vector<bool> done(buffers.size());
        const Nanos deadline = steady_now() + kPatience;
        while (!pair.receiver->failure() && steady_now() < deadline) {
            if (pair.sender != nullptr) {
                pair.sender->progress(steady_now());
            }
            for (std::size_t i = 0; i < buffers.size(); ++i) {
                if (!done[i] && pair.receiver->test(receives[i], steady_now(), nullptr)) {
                    done[i] = true;
                    EXPECT_TRUE(buffers[i] == sent) << "message " << i;
                }
            }
        }
        EXPECT_TRUE(pair.receiver->failure()) << "it waits for ever";
    }

    static constexpr std::size_t kSize = 1 << 15;  // several find room in a socket
    static ConnectionOptions options(const char* zerocopy) {
        ConnectionOptions options;
        options.zerocopy = zerocopy;
        return options;
    }
};

TEST_F(Pages, TakenBackByDeregMrReachNobody) {
    for (const char* const zerocopy : {"on", "off"}) {
        UnderWay scene(2, zerocopy);
        scene.pair.sender->release(scene.data.data(), scene.data.size());
        EXPECT_TRUE(scene.pair.sender->failure());
        scene.overwrite();
        EXPECT_FALSE(scene.pair.sender->test(scene.sends[0], steady_now(), nullptr));
        scene.expect_nothing_else();
    }
}

TEST_F(Pages, TakenBackByClosingReachNobody) {
    for (const char* const zerocopy : {"on", "off"}) {
        UnderWay scene(2, zerocopy);
        scene.pair.sender->close(kSecond / 10);
        scene.pair.sender.reset();
        scene.overwrite();
        scene.expect_nothing_else();
    }
}

// The other way round: nothing is written to where a receive was posted.
TEST_F(Pages, ReceiveBuffersThatAreTakenBackStayAsTheyAre) {
    UnderWay scene(2);
    Receiver& receiver = *scene.pair.receiver;
    receiver.release(scene.buffers[3].data(), 1);
    EXPECT_TRUE(receiver.failure());
    const Nanos deadline = steady_now() + kPatience;
    while (!scene.pair.sender->failure() && steady_now() < deadline) {
        receiver.progress(steady_now());
        scene.pair.sender->progress(steady_now());
    }
    EXPECT_TRUE(scene.pair.sender->failure());
    for (const Bytes& buffer : scene.buffers) {
        EXPECT_TRUE(buffer == Bytes(UnderWay::kSize));
    }
}

// A failure is why most jobs abort.
TEST(TakenBack, AfterAFailureToo) {
    TcpPair pair(2);
    ASSERT_TRUE(pair.establish());
    const Bytes data(1 << 16);
    Bytes buffer(1 << 15);  // too small
    Bytes next(1 << 16);
    ASSERT_NE(pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now()), nullptr);
    Request* const pending = pair.receiver->irecv(next.data(), next.size(), false, steady_now());
    ASSERT_NE(pending, nullptr);
    const Nanos deadline = steady_now() + kPatience;
    Request* send = nullptr;
    while (!pair.receiver->failure() && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        send = send != nullptr ? send : pair.sender->isend(data.data(), data.size(), steady_now());
        pair.receiver->progress(steady_now());
    }
    ASSERT_TRUE(pair.receiver->failure());
    pair.receiver->release(next.data(), next.size());
    pair.sender->release(data.data(), data.size());
    for (int i = 0; i < 500; ++i) {  // nor does a path come back
        pair.receiver->progress(steady_now());
        pair.sender->progress(steady_now());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::size_t path = 0; path < 2; ++path) {
        EXPECT_EQ(pair.receiver->state(path), PathState::Down);
        EXPECT_EQ(pair.sender->state(path), PathState::Down);
    }
}

TEST_F(Pages, OfOtherMemoryMayGo) {
    UnderWay scene(1);
    const Bytes other(UnderWay::kSize);
    scene.pair.sender->release(other.data(), other.size());
    scene.pair.sender->release(scene.data.data(), 0);
    scene.pair.receiver->release(other.data(), other.size());
    EXPECT_FALSE(scene.pair.sender->failure());
    EXPECT_FALSE(scene.pair.receiver->failure());
    const Nanos deadline = steady_now() + kPatience;
    bool done = false;
    while (!done && steady_now() < deadline) {
        (void)scene.pair.receiver->test(scene.receives[0], steady_now(), nullptr);
        done = scene.pair.sender->test(scene.sends[0], steady_now(), nullptr);
    }
    EXPECT_TRUE(done);
}

}  // namespace
}  // namespace deft::net::testing
