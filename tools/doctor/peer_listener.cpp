// SPDX-License-Identifier: Apache-2.0
// The side that answers: `deft doctor --listen`.
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/build_version.h"
#include "tools/doctor/peer.h"
#include "tools/doctor/peer_flow.h"
#include "tools/doctor/peer_socket.h"
#include "tools/doctor/peer_text.h"
#include "tools/text_output.h"
#include "topology/listening.h"
#include "topology/rdma.h"

namespace deft::tools::doctor {
namespace {

using namespace std::chrono_literals;

constexpr int kMostChildren = 64;

// On all addresses of both families, where the host has both.
UniqueFd unbound(int family) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int off = 0;
    if (fd && family == AF_INET6) {
        (void)::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    return fd;
}

// Where the job's own connections would be taken: in DEFT_PORTS, or where the kernel wants.
UniqueFd listen_for_data(int& port, std::string& error) {
    for (const int family : {AF_INET6, AF_INET}) {
        Address any;
        any.family = family;
        std::uint16_t got = 0;
        UniqueFd fd = listen_at([family] { return unbound(family); }, any, 64, got, error);
        if (fd) {
            port = got;
            return fd;
        }
    }
    return UniqueFd();
}

// On this port; 0: any, which is told.
UniqueFd listen_on(int& port, std::string& error) {
    for (const int family : {AF_INET6, AF_INET}) {
        UniqueFd fd = unbound(family);
        const int on = 1;
        sockaddr_in6 six{};
        six.sin6_family = AF_INET6;
        six.sin6_port = htons(static_cast<std::uint16_t>(port));
        sockaddr_in four{};
        four.sin_family = AF_INET;
        four.sin_port = six.sin6_port;
        const bool is_six = family == AF_INET6;
        if (fd) {
            (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        }
        const auto* const address = is_six ? reinterpret_cast<const sockaddr*>(&six)
                                           : reinterpret_cast<const sockaddr*>(&four);
        const socklen_t size = is_six ? sizeof six : sizeof four;
        if (!fd || ::bind(fd.get(), address, size) != 0 || ::listen(fd.get(), 64) != 0) {
            error = std::strerror(errno);
            continue;
        }
        sockaddr_in6 bound{};
        socklen_t length = sizeof bound;
        (void)::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
        port = ntohs(bound.sin6_port);  // in the same place for both families
        return fd;
    }
    return UniqueFd();
}

PeerInfo own_info(int port) {
    PeerInfo info;
    char name[256] = "";
    (void)::gethostname(name, sizeof name - 1);
    info.host = name;
    info.version = build_version();
    info.port = port;
    info.time =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    info.settings = settings_to_compare(Config::process());
    for (const Interface& link : process_links().links) {
        info.links.push_back({link.name, link.addresses, link.mtu, link.nominal_speed()});
    }
    return info;
}

void send_info(int fd, int port) {
    const std::string text = peer_info_text(own_info(port));
    (void)send_all(fd, text.data(), text.size(), after(5s));
}

void send_back(int fd) {
    std::array<char, kFull> bytes;
    for (const std::size_t size : {kSmall, kFull}) {
        if (!receive_all(fd, bytes.data(), size, after(10s)) ||
            !send_all(fd, bytes.data(), size, after(10s))) {
            return;
        }
    }
}

// In a process of its own, so that one that is slow holds nobody up.
void serve(int fd, int port) {
    char what = '\0';
    if (!receive_all(fd, &what, 1, after(10s))) {
        return;
    }
    switch (what) {
        case kAskInfo:
            send_info(fd, port);
            break;
        case kAskEcho:
            send_back(fd);
            break;
        case kAskPings:
            answer_pings(fd);
            break;
        case kAskDrain:
            answer_drain(fd);
            break;
        case kAskSource:
            answer_source(fd);
            break;
        default:  // a stranger, or a newer release
            break;
    }
}

// How many processes have been started for it: 0 or 1. `full`: it is turned away.
int serve_next(int listener, int data_port, bool full) {
    const UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd || full) {
        return 0;
    }
    const pid_t child = ::fork();
    if (child == 0) {
        (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody is served when the listener has ended
        serve(fd.get(), data_port);
        ::_exit(0);
    }
    return child > 0 ? 1 : 0;
}

// Nothing comes on standard input of a listener; at its end whoever started it has gone.
bool input_ended() {
    std::array<char, 64> bytes;
    return ::read(STDIN_FILENO, bytes.data(), bytes.size()) <= 0;
}

// For ever, or until standard input ends.
int answer(int asked, int data, int data_port, bool until_end) {
    int children = 0;
    for (;;) {
        pollfd ready[3] = {
            {asked, POLLIN, 0}, {data, POLLIN, 0}, {until_end ? STDIN_FILENO : -1, POLLIN, 0}};
        (void)::poll(ready, 3, children > 0 ? 1000 : -1);
        while (children > 0 && ::waitpid(-1, nullptr, WNOHANG) > 0) {
            --children;
        }
        if (ready[2].revents != 0 && input_ended()) {
            return kSuccess;
        }
        for (const int fd : {asked, data}) {
            const pollfd& each = fd == asked ? ready[0] : ready[1];
            if ((each.revents & POLLIN) != 0) {
                children += serve_next(fd, data_port, children >= kMostChildren);
            }
        }
    }
}

}  // namespace

int answer_peers(const Listening& how) {
    int port = how.port;
    std::string error;
    int data_port = 0;
    const UniqueFd asked = listen_on(port, error);
    const UniqueFd data = asked ? listen_for_data(data_port, error) : UniqueFd();
    if (!asked || !data) {
        complain(fmt::format("{}: port {}: {}; choose another", how.command, port, error));
        return kProblem;
    }
    std::string text = fmt::format(
        "listening on port {}; on the other host: deft {}{}\n", port, how.other,
        port == kPeerPort && !how.names_port ? std::string() : ":" + std::to_string(port));
    if (how.for_program) {
        text += peer_info_text(own_info(data_port)) + "\n";
    }
    const int printed = print(text);
    return printed == kSuccess ? answer(asked.get(), data.get(), data_port, how.for_program)
                               : printed;
}

}  // namespace deft::tools::doctor
