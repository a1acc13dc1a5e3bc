// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/page_pipes.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/mutex.h"

namespace deft::net {
namespace {

constexpr int kWanted = 1 << 18;
constexpr int kLeast = 1 << 16;  // less is what a user who has too many pipes gets

// splice(2) has no MSG_NOSIGNAL, and the job may not ignore SIGPIPE.
class NoSigpipe {
public:
    NoSigpipe() {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
        sigset_t pending;
        pending_ = sigismember(&before_, SIGPIPE) == 1 && sigpending(&pending) == 0 &&
                   sigismember(&pending, SIGPIPE) == 1;
    }
    ~NoSigpipe() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    NoSigpipe(const NoSigpipe&) = delete;
    NoSigpipe& operator=(const NoSigpipe&) = delete;
    // Takes the signal away, if there is one now and was none before.
    void swallow() const {
        const timespec now{};
        while (!pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
        }
    }

private:
    sigset_t pipe_;
    sigset_t before_;
    bool pending_;
};

std::atomic<bool> barred{false};

// The kernel's error, as none that means something to who called.
int other(int error) {
    return error == ENOTSUP || error == EBUSY ? EPERM : error;
}

}  // namespace

std::shared_ptr<PagePipes> PagePipes::process(const std::string& setting) {
    if (setting == "off" || given_up()) {
        return nullptr;
    }
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& mutex = *new Mutex;
    static auto* const known DEFT_PT_GUARDED_BY(mutex) = new std::weak_ptr<PagePipes>;
    const MutexLock lock(mutex);
    if (setting == "auto") {
        static const bool many = takes_many();
        if (!many) {
            return nullptr;
        }
    }
    std::shared_ptr<PagePipes> pipes = known->lock();
    if (pipes == nullptr) {
        pipes = std::make_shared<PagePipes>();
        if (!pipes->open()) {
            return nullptr;
        }
        *known = pipes;
    }
    return pipes;
}

// Sixteen pieces in a pipe, each a page of its own to the kernel, moved by one call to a socket
// that keeps calls apart: a kernel that hands them over together makes one datagram, an older one
// sixteen.
bool PagePipes::takes_many() {
    constexpr std::size_t kPieces = 16;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        return false;
    }
    const UniqueFd to(ends[0]);
    const UniqueFd from(ends[1]);
    Pipe pipe;
    std::array<char, 2 * kPieces> bytes{};
    std::array<iovec, kPieces> pieces{};
    for (std::size_t i = 0; i < kPieces; ++i) {
        pieces[i] = {&bytes[2 * i], 1};
    }
    constexpr auto kAll = static_cast<ssize_t>(kPieces);
    return pipe.open() &&
           vmsplice(pipe.in.get(), pieces.data(), kPieces, SPLICE_F_NONBLOCK) == kAll &&
           splice(pipe.out.get(), nullptr, to.get(), nullptr, kPieces, SPLICE_F_NONBLOCK) == kAll &&
           recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) == kAll;
}

void PagePipes::give_up(int error) {
    if (!barred.exchange(true)) {
        DEFT_INFO(
            "this host refuses to send without copying (vmsplice or splice: %s): large pieces are "
            "copied from now on; DEFT_TCP_ZEROCOPY=off does not try",
            std::strerror(error));
    }
}

bool PagePipes::given_up() {
    return barred.load(std::memory_order_relaxed);
}

void PagePipes::begin_anew() {
    barred.store(false);
}

bool PagePipes::open() {
    ForkGuard::process().arm();
    sink_ = UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    return sink_ && pipes_[0].open();
}

bool PagePipes::Pipe::open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return false;
    }
    out = UniqueFd(ends[0]);
    in = UniqueFd(ends[1]);
    (void)fcntl(in.get(), F_SETPIPE_SZ, kWanted);
    if (fcntl(in.get(), F_GETPIPE_SZ) < kLeast) {
        in.reset();
        out.reset();
    }
    return static_cast<bool>(in);
}

ssize_t PagePipes::send(int socket, const std::byte* data, std::size_t length) {
    const bool pointless = given_up();
    if (!pointless && !ForkGuard::process().in_child()) {  // a child would share the pipes
        for (Pipe& pipe : pipes_) {
            if (pipe.taken.load(std::memory_order_relaxed) ||
                pipe.taken.exchange(true, std::memory_order_acquire)) {
                continue;
            }
            const bool usable = !pipe.broken && (pipe.in || pipe.open());
            pipe.broken = !usable;
            const ssize_t sent =
                usable ? pipe.send(socket, data, length, sink_.get()) : ssize_t{-1};
            const int error = errno;
            pipe.taken.store(false, std::memory_order_release);
            if (usable) {
                errno = error;
                return sent;
            }
        }
    }
    errno = pointless ? ENOTSUP : EBUSY;
    return -1;
}

ssize_t PagePipes::Pipe::send(int socket, const std::byte* data, std::size_t length, int sink) {
    const iovec part{const_cast<std::byte*>(data), length};
    const ssize_t held = vmsplice(in.get(), &part, 1, SPLICE_F_NONBLOCK);
    if (held <= 0) {
        const bool passes = errno == ENOMEM || errno == EINTR || errno == EAGAIN;
        // EFAULT: memory that has no pages.
        errno = passes ? EBUSY : errno == EFAULT ? ENOTSUP : other(errno);
        return -1;
    }
    const auto whole = static_cast<std::size_t>(held);
    const NoSigpipe no_sigpipe;
    const ssize_t sent = splice(out.get(), nullptr, socket, nullptr, whole,
                                SPLICE_F_NONBLOCK | (whole < length ? SPLICE_F_MORE : 0U));
    int error = errno;
    if (sent != held) {  // it may have got somewhere before the signal
        no_sigpipe.swallow();
    }
    if (sent == 0) {
        error = EAGAIN;
    } else if (sent < 0 && error != EAGAIN) {
        const bool passes = error == EINTR || error == ENOMEM || error == ENOBUFS;
        error = passes ? EBUSY : other(error);
    }
    empty(whole - static_cast<std::size_t>(std::max<ssize_t>(sent, 0)), sink);
    errno = error;
    return sent > 0 ? sent : -1;
}

void PagePipes::Pipe::empty(std::size_t left, int sink) {
    while (left > 0) {
        const ssize_t gone = splice(out.get(), nullptr, sink, nullptr, left, SPLICE_F_NONBLOCK);
        if (gone < 0 && errno == EINTR) {
            continue;
        }
        if (gone <= 0) {  // what remains would go out before the next message
            in.reset();
            out.reset();
            return;
        }
        left -= static_cast<std::size_t>(gone);
    }
}

}  // namespace deft::net
