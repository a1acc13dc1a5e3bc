// SPDX-License-Identifier: Apache-2.0
// What plain TCP reaches: streams on given addresses at once, and a ping-pong. The reference for
// the plugin's figures.
//
// usage: raw_tcp serve PORT                          until killed; prints a line when it listens
//        raw_tcp stream PORT SECONDS STREAMS FROM=TO...   STREAMS connections on each pair
//        raw_tcp ping PORT ROUNDS BYTES FROM=TO           half round trips
// Results are one line of JSON.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kWrite = 512 * 1024;

[[noreturn]] void die(const char* what) {
    std::fprintf(stderr, "raw_tcp: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

sockaddr_in address(const std::string& text, int port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(static_cast<std::uint16_t>(port));
    if (inet_pton(AF_INET, text.c_str(), &out.sin_addr) != 1) {
        errno = EINVAL;
        die(text.c_str());
    }
    return out;
}

void no_delay(int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Non-blocking, as a network plugin has to do it.
bool spin_read(int fd, std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
        const ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            return false;
        }
        if (got < 0) {
            sched_yield();
            continue;
        }
        data += got;
        bytes -= static_cast<std::size_t>(got);
    }
    return true;
}

bool write_all(int fd, const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
        const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        data += sent;
        bytes -= static_cast<std::size_t>(sent);
    }
    return true;
}

// One connection of the server: its first byte says what the client wants.
void serve_one(deft::UniqueFd fd) {
    no_delay(fd.get());
    std::vector<std::byte> buffer(kWrite);
    std::uint32_t ping = 0;
    if (recv(fd.get(), &ping, sizeof(ping), MSG_WAITALL) != sizeof(ping)) {
        return;
    }
    if (ping != 0) {
        buffer.resize(ping);
        while (spin_read(fd.get(), buffer.data(), ping) &&
               write_all(fd.get(), buffer.data(), ping)) {
        }
        return;
    }
    const double before = cpu_seconds();
    while (recv(fd.get(), buffer.data(), buffer.size(), 0) > 0) {
    }
    const double used = cpu_seconds() - before;
    (void)send(fd.get(), &used, sizeof(used), MSG_NOSIGNAL);
}

int serve(int port) {
    const deft::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    (void)setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const sockaddr_in any = address("0.0.0.0", port);
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0 ||
        listen(listener.get(), 64) != 0) {
        die("listen");
    }
    std::printf("ready\n");
    std::fflush(stdout);
    for (;;) {
        deft::UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (fd) {
            std::thread(serve_one, std::move(fd)).detach();
        }
    }
}

deft::UniqueFd reach(const std::string& pair, int port, std::uint32_t ping) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) {
        errno = EINVAL;
        die(pair.c_str());
    }
    const sockaddr_in from = address(pair.substr(0, equals), 0);
    const sockaddr_in to = address(pair.substr(equals + 1), port);
    deft::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)) != 0 ||
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
        die(pair.c_str());
    }
    no_delay(fd.get());
    if (!write_all(fd.get(), reinterpret_cast<const std::byte*>(&ping), sizeof(ping))) {
        die("send");
    }
    return fd;
}

int stream(int port, double seconds, int streams, const std::vector<std::string>& pairs) {
    struct Flow {
        deft::UniqueFd fd;
        std::uint64_t bytes = 0;
        double seconds = 0;
        double peer_cpu = 0;
    };
    std::vector<Flow> flows(pairs.size() * static_cast<std::size_t>(streams));
    for (std::size_t i = 0; i < flows.size(); ++i) {
        flows[i].fd = reach(pairs[i % pairs.size()], port, 0);
    }
    const auto start = Clock::now();
    const double cpu_before = cpu_seconds();
    std::vector<std::thread> threads;
    for (Flow& flow : flows) {
        threads.emplace_back([&flow, start, seconds] {
            const std::vector<std::byte> data(kWrite);
            while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
                if (!write_all(flow.fd.get(), data.data(), data.size())) {
                    die("send");
                }
                flow.bytes += data.size();
            }
            shutdown(flow.fd.get(), SHUT_WR);
            // The answer comes when the last byte has been read.
            if (recv(flow.fd.get(), &flow.peer_cpu, sizeof(double), MSG_WAITALL) !=
                sizeof(double)) {
                die("receive");
            }
            flow.seconds = std::chrono::duration<double>(Clock::now() - start).count();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    double cpu = cpu_seconds() - cpu_before;
    double sum = 0;
    std::uint64_t bytes = 0;
    std::string each;
    for (const Flow& flow : flows) {
        const double gbit = static_cast<double>(flow.bytes) * 8e-9 / flow.seconds;
        sum += gbit;
        bytes += flow.bytes;
        cpu = std::max(cpu, 0.0);
        each += (each.empty() ? "" : ",") + std::to_string(gbit);
    }
    double peer_cpu = 0;  // each flow saw the CPU time of the whole server
    for (const Flow& flow : flows) {
        peer_cpu = std::max(peer_cpu, flow.peer_cpu);
    }
    std::printf("{\"gbit_per_s\":%.4f,\"flows\":[%s],\"cpu_s_per_gb\":%.4f}\n", sum, each.c_str(),
                (cpu + peer_cpu) / (static_cast<double>(bytes) * 1e-9));
    return 0;
}

int ping(int port, int rounds, std::size_t bytes, const std::string& pair) {
    const deft::UniqueFd fd = reach(pair, port, static_cast<std::uint32_t>(bytes));
    std::vector<std::byte> data(bytes);
    std::vector<double> half;
    for (int i = 0; i < rounds + 200; ++i) {
        const auto start = Clock::now();
        if (!write_all(fd.get(), data.data(), bytes) || !spin_read(fd.get(), data.data(), bytes)) {
            die("ping");
        }
        if (i >= 200) {
            half.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
                           2);
        }
    }
    std::sort(half.begin(), half.end());
    std::printf("{\"half_round_trip_us\":%.3f,\"p99\":%.3f}\n", half[half.size() / 2],
                half[half.size() * 99 / 100]);
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments, arguments + count);
    const auto number = [&](std::size_t at) { return std::atof(words[at].c_str()); };
    const std::string what = count > 2 ? words[1] : "";
    const int port = count > 2 ? static_cast<int>(number(2)) : 0;
    if (what == "serve") {
        return serve(port);
    }
    if (what == "stream" && count > 5) {
        return stream(port, number(3), static_cast<int>(number(4)),
                      {words.begin() + 5, words.end()});
    }
    if (what == "ping" && count == 6 && number(3) > 0 && number(4) > 0) {
        return ping(port, static_cast<int>(number(3)), static_cast<std::size_t>(number(4)),
                    words[5]);
    }
    std::fprintf(stderr,
                 "usage: raw_tcp serve PORT | stream PORT SECONDS STREAMS FROM=TO... | "
                 "ping PORT ROUNDS BYTES FROM=TO\n");
    return 2;
}
