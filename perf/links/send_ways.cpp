// SPDX-License-Identifier: Apache-2.0
// Ways of handing messages to the kernel, over one TCP connection to `raw_tcp serve`: is any of
// them cheaper than plain send()? Eight messages are on their way at most, as with NCCL.
//
// usage: send_ways send|pages|zerocopy|uring|uring-zerocopy PORT SECONDS BYTES FROM TO
// The result is one line of JSON; exit code 3 if the kernel or this build lacks the way.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "plugin/tcp/page_pipes.h"

namespace {

constexpr std::uint32_t kDepth = 8;

[[noreturn]] void die(const char* what, int error, int status = 1) {
    std::fprintf(stderr, "send_ways: %s: %s\n", what, std::strerror(error));
    std::exit(status);
}

// Sends the whole buffer, or dies.
class Way {
public:
    virtual ~Way() = default;
    virtual void send(const std::vector<std::byte>& data) = 0;
    virtual void finish() {}
};

class Plain : public Way {
public:
    Plain(int fd, int flags) : fd_(fd), flags_(flags | MSG_NOSIGNAL) {}
    void send(const std::vector<std::byte>& data) override {
        for (std::size_t at = 0; at < data.size();) {
            const ssize_t sent = ::send(fd_, data.data() + at, data.size() - at, flags_);
            if (sent < 0) {
                die("send", errno);
            }
            at += static_cast<std::size_t>(sent);
            calls_ += 1;
        }
    }

protected:
    int fd_;
    std::uint32_t calls_ = 0;

private:
    int flags_;
};

// As the plugin does it.
class Pages final : public Way {
public:
    explicit Pages(int fd) : fd_(fd), pipes_(deft::net::PagePipes::process("on")) {
        if (pipes_ == nullptr || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
            die("pipes", errno, 3);
        }
    }
    void send(const std::vector<std::byte>& data) override {
        for (std::size_t at = 0; at < data.size();) {
            const ssize_t sent = pipes_->send(fd_, data.data() + at, data.size() - at);
            pollfd room{fd_, POLLOUT, 0};
            if (sent < 0 && (errno != EAGAIN || poll(&room, 1, 1000) < 0)) {
                die("pages", errno, errno == ENOTSUP ? 3 : 1);
            }
            at += sent < 0 ? 0 : static_cast<std::size_t>(sent);
        }
    }
    void finish() override { (void)fcntl(fd_, F_SETFL, 0); }

private:
    int fd_;
    std::shared_ptr<deft::net::PagePipes> pipes_;
};

// The kernel tells on the error queue which calls' bytes it no longer needs.
class ZeroCopy final : public Plain {
public:
    explicit ZeroCopy(int fd) : Plain(fd, MSG_ZEROCOPY) {
        const int on = 1;
        if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
            die("SO_ZEROCOPY", errno, 3);
        }
    }
    void send(const std::vector<std::byte>& data) override {
        Plain::send(data);
        wait_until(kDepth);
    }
    void finish() override { wait_until(0); }

private:
    void wait_until(std::uint32_t open) {
        while (calls_ - done_ > open) {
            char control[128];
            msghdr message{};
            message.msg_control = control;
            message.msg_controllen = sizeof(control);
            if (recvmsg(fd_, &message, MSG_ERRQUEUE) < 0) {
                if (errno != EAGAIN) {
                    die("error queue", errno);
                }
                pollfd errors{fd_, 0, 0};
                (void)poll(&errors, 1, 1000);
                continue;
            }
            sock_extended_err told;
            std::memcpy(&told, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(told));
            done_ = told.ee_data + 1;
        }
    }
    std::uint32_t done_ = 0;
};

#ifdef HAVE_LIBURING
class Uring final : public Way {
public:
    Uring(int fd, bool zero_copy) : fd_(fd), zero_copy_(zero_copy) {
        if (const int error = io_uring_queue_init(4 * kDepth, &ring_, 0); error < 0) {
            die("io_uring", -error, 3);
        }
    }
    ~Uring() override { io_uring_queue_exit(&ring_); }
    void send(const std::vector<std::byte>& data) override {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        // MSG_WAITALL: short sends are taken up again by the kernel, so that the order holds.
        if (zero_copy_) {
            io_uring_prep_send_zc(entry, fd_, data.data(), data.size(), MSG_WAITALL, 0);
        } else {
            io_uring_prep_send(entry, fd_, data.data(), data.size(), MSG_WAITALL);
        }
        entry->flags |= IOSQE_IO_LINK;
        io_uring_submit(&ring_);
        open_ += 1;
        // One chain at a time keeps the stream in order.
        wait_until(0, data.size());
    }

private:
    void wait_until(std::uint32_t open, std::size_t bytes) {
        while (open_ > open || notes_ > kDepth) {
            io_uring_cqe* event = nullptr;
            if (const int error = io_uring_wait_cqe(&ring_, &event); error < 0) {
                die("io_uring", -error);
            }
            if ((event->flags & IORING_CQE_F_NOTIF) != 0) {
                notes_ -= 1;
            } else {
                if (event->res != static_cast<int>(bytes)) {
                    die("io_uring send", event->res < 0 ? -event->res : EIO,
                        event->res == -EINVAL ? 3 : 1);
                }
                open_ -= 1;
                notes_ += (event->flags & IORING_CQE_F_MORE) != 0 ? 1 : 0;
            }
            io_uring_cqe_seen(&ring_, event);
        }
    }
    int fd_;
    bool zero_copy_;
    io_uring ring_{};
    std::uint32_t open_ = 0;
    std::uint32_t notes_ = 0;
};
#endif

std::unique_ptr<Way> make(const std::string& name, int fd) {
    if (name == "send") {
        return std::make_unique<Plain>(fd, 0);
    }
    if (name == "pages") {
        return std::make_unique<Pages>(fd);
    }
    if (name == "zerocopy") {
        return std::make_unique<ZeroCopy>(fd);
    }
    if (name == "uring" || name == "uring-zerocopy") {
#ifdef HAVE_LIBURING
        return std::make_unique<Uring>(fd, name != "uring");
#else
        die("built without liburing", ENOSYS, 3);
#endif
    }
    die(name.c_str(), EINVAL, 2);
}

deft::UniqueFd reach(const char* from, const char* to, int port) {
    sockaddr_in ends[2] = {};
    for (sockaddr_in& end : ends) {
        end.sin_family = AF_INET;
    }
    ends[1].sin_port = htons(static_cast<std::uint16_t>(port));
    deft::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (inet_pton(AF_INET, from, &ends[0].sin_addr) != 1 ||
        inet_pton(AF_INET, to, &ends[1].sin_addr) != 1 ||
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&ends[0]), sizeof(sockaddr_in)) != 0 ||
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&ends[1]), sizeof(sockaddr_in)) != 0 ||
        setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
        die(to, errno);
    }
    return fd;
}

double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

}  // namespace

int main(int count, char** words) {
    const int port = count == 7 ? std::atoi(words[2]) : 0;
    const double seconds = count == 7 ? std::atof(words[3]) : 0;
    const long bytes = count == 7 ? std::atol(words[4]) : 0;
    if (port <= 0 || seconds <= 0 || bytes <= 0) {
        std::fprintf(stderr,
                     "usage: send_ways send|pages|zerocopy|uring|uring-zerocopy PORT SECONDS BYTES "
                     "FROM TO\n");
        return 2;
    }
    const deft::UniqueFd fd = reach(words[5], words[6], port);
    const std::uint32_t stream = 0;  // what raw_tcp's server is to do: read
    if (send(fd.get(), &stream, sizeof(stream), MSG_NOSIGNAL) != sizeof(stream)) {
        die("send", errno);
    }
    const std::unique_ptr<Way> way = make(words[1], fd.get());
    const std::vector<std::vector<std::byte>> data(
        kDepth, std::vector<std::byte>(static_cast<std::size_t>(bytes)));
    const auto start = std::chrono::steady_clock::now();
    const auto passed = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const double before = cpu_seconds();
    std::uint64_t messages = 0;
    while (passed() < seconds) {
        way->send(data[messages++ % kDepth]);
    }
    way->finish();
    shutdown(fd.get(), SHUT_WR);
    double peer = 0;  // the server's CPU time; it comes when the last byte has been read
    if (recv(fd.get(), &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) {
        die("receive", errno);
    }
    const double gigabytes = 1e-9 * static_cast<double>(messages) * static_cast<double>(bytes);
    std::printf("{\"gbit_per_s\":%.4f,\"cpu_s_per_gb\":%.4f}\n", 8 * gigabytes / passed(),
                (cpu_seconds() - before + peer) / gigabytes);
    return 0;
}
