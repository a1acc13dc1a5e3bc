// SPDX-License-Identifier: Apache-2.0
// Two processes, each in a network namespace of its own, joined by veth links, which have a
// connection through the product.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "deft/abi/net.h"

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kSkipped = 77;

// Whether this process has waited for too long, looking again and again. The time for which it was
// stopped itself (SIGSTOP, a suspended machine) does not count: its peer was stopped, too.
class Waited {
public:
    bool too_long() {
        constexpr auto kStopped = std::chrono::seconds(5);
        const Clock::time_point now = Clock::now();
        since_ += now - looked_ > kStopped ? now - looked_ : Clock::duration::zero();
        looked_ = now;
        return now - since_ > kPatience;
    }

private:
    Clock::time_point since_ = Clock::now();
    Clock::time_point looked_ = since_;
};

[[noreturn]] inline void die(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    _exit(1);
}

inline bool run(const std::string& command) {
    return std::system(command.c_str()) == 0;
}

// Namespaces of the network are for root: the program starts again as root of a user namespace of
// its own, or exits as skipped where that is not allowed.
inline void become_root(char** arguments) {
    if (geteuid() == 0) {
        return;
    }
    if (std::getenv("DEFT_TEST_INSIDE") == nullptr && run("unshare -Urn true 2>/dev/null")) {
        setenv("DEFT_TEST_INSIDE", "1", 1);
        std::vector<char*> command;
        for (const char* word : {"unshare", "-Urn", "--"}) {
            command.push_back(const_cast<char*>(word));
        }
        while (*arguments != nullptr) {
            command.push_back(*arguments++);
        }
        command.push_back(nullptr);
        execvp(command[0], command.data());
    }
    std::printf("skipped: neither root nor user namespaces\n");
    std::exit(kSkipped);
}

// The kernel reports the carrier a moment after both ends are up; NCCL would skip such a link too.
inline void await_links(std::size_t links) {
    const auto start = Clock::now();
    std::size_t running = 0;
    while (running < links && Clock::now() - start < kPatience) {
        running = 0;
        ifaddrs* list = nullptr;
        if (getifaddrs(&list) == 0) {
            for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
                running += std::strncmp(entry->ifa_name, "eth", 3) == 0 &&
                                   entry->ifa_addr != nullptr &&
                                   entry->ifa_addr->sa_family == AF_INET &&
                                   (entry->ifa_flags & IFF_RUNNING) != 0
                               ? 1
                               : 0;
            }
            freeifaddrs(list);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

// One end's connection, through the product as NCCL loads it.
struct Connection {
    Connection(const char* library, bool sender, int control, std::size_t links = 2)
        : sender_(sender) {
        void* object = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (object == nullptr) {
            die("dlopen: %s", dlerror());
        }
        net = static_cast<const deft_net_v11_t*>(dlsym(object, "ncclNetPlugin_v11"));
        if (net == nullptr) {
            die("no ncclNetPlugin_v11");
        }
        await_links(links);
        deft_net_comm_config_t config{DEFT_NET_TRAFFIC_CLASS_UNDEF};
        if (net->init(&context_, 1, &config, nullptr, nullptr) != 0) {
            die("init failed");
        }
        char handle[DEFT_NET_HANDLE_MAXSIZE] = {};
        deft_net_device_handle_t* device = nullptr;
        if (sender) {
            if (read(control, handle, sizeof(handle)) != sizeof(handle)) {
                die("no handle");
            }
        } else if (net->listen(context_, 0, handle, &listener_) != 0 ||
                   write(control, handle, sizeof(handle)) != sizeof(handle)) {
            die("listen failed");
        }
        for (Waited waited; comm == nullptr;) {
            if ((sender ? net->connect(context_, 0, handle, &comm, &device)
                        : net->accept(listener_, &comm, &device)) != 0 ||
                waited.too_long()) {
                die("%s failed", sender ? "connect" : "accept");
            }
        }
    }
    void close() const {
        if ((sender_ ? net->closeSend(comm) : net->closeRecv(comm)) != 0 ||
            (!sender_ && net->closeListen(listener_) != 0) || net->finalize(context_) != 0) {
            die("close failed");
        }
    }

    const deft_net_v11_t* net = nullptr;
    void* comm = nullptr;

private:
    bool sender_;
    void* context_ = nullptr;
    void* listener_ = nullptr;
};

struct End {
    pid_t pid = 0;
    int control = -1;
};

// Forks an end, which runs `body` once its links are there and it is told to go on.
template <class Body>
End start_end(Body&& body) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        die("socketpair");
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(pair[0]);
        const bool own = unshare(CLONE_NEWNET) == 0;
        if (write(pair[1], own ? "n" : "x", 1) != 1) {
            _exit(1);
        }
        char go = 0;
        if (read(pair[1], &go, 1) != 1) {  // the links are there
            _exit(1);
        }
        body(pair[1]);
    }
    close(pair[1]);
    char state = 'x';
    if (read(pair[0], &state, 1) != 1 || state != 'n') {
        std::printf("skipped: no network namespaces for this user\n");
        std::exit(kSkipped);
    }
    return {pid, pair[0]};
}

inline std::string in_namespace(pid_t pid, const std::string& command) {
    return "nsenter -t " + std::to_string(pid) + " -n " + command;
}

inline bool make_link(int index, const char* rate, pid_t a, pid_t b) {
    const std::string name = "eth" + std::to_string(index);
    const std::string net = "10.77." + std::to_string(index) + ".";
    if (!run("ip link add " + name + " netns " + std::to_string(a) + " type veth peer name " +
             name + " netns " + std::to_string(b))) {
        return false;
    }
    bool good = true;
    for (const pid_t pid : {a, b}) {
        const std::string address = net + (pid == a ? "1" : "2") + "/24";
        good = good && run(in_namespace(pid, "ip addr add " + address + " dev " + name)) &&
               run(in_namespace(pid, "ip link set " + name + " up"));
        // Shaping makes the links unequal; without tbf in this kernel the test still holds.
        (void)run(in_namespace(pid, "tc qdisc add dev " + name + " root tbf rate " + rate +
                                        " burst 64kb latency 20ms 2>/dev/null"));
    }
    return good;
}

// What `pid` sends to the other host's address over a link is lost: frames leave for a neighbour
// that nobody is.
inline bool lose_frames(pid_t pid, int link, int host, bool on) {
    const std::string peer = "10.77." + std::to_string(link) + "." + std::to_string(host);
    const std::string device = " dev eth" + std::to_string(link);
    return run(
        in_namespace(pid, on ? "ip neigh replace " + peer + " lladdr 02:00:00:00:00:99" + device
                             : "ip neigh del " + peer + device));
}

// Lets both ends connect once the links are there. From then on their hosts outlive them.
inline void connect_ends(const End& a, const End& b) {
    for (const pid_t pid : {a.pid, b.pid}) {
        if (open(("/proc/" + std::to_string(pid) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC) < 0) {
            die("no namespace: %s", std::strerror(errno));
        }
    }
    char handle[DEFT_NET_HANDLE_MAXSIZE];
    if (write(b.control, "g", 1) != 1 ||
        read(b.control, handle, sizeof(handle)) != sizeof(handle) ||
        write(a.control, "g", 1) != 1 ||
        write(a.control, handle, sizeof(handle)) != sizeof(handle)) {
        die("the ends did not come up");
    }
}
