// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/rules_driver.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>

namespace softdev::net {
namespace {

[[noreturn]] void wrong(const CommNet& net, int device, const std::string& what) {
    throw DriveError(std::string(net->name()) + " device " + std::to_string(device) +
                     ": getProperties: " + what);
}

// One side from open to release.
std::string run_side(const Scenario& scenario, const RulesOptions& options, int index,
                     NetRegistry& registry, deft::UniqueFd fd) {
    const std::string who = "side " + std::to_string(index) + ": ";
    try {
        Rendezvous peer(std::move(fd), options.patience_s);
        CommNet net;
        CommRequest request;
        request.comm_id = options.seed;
        request.traffic_class = options.traffic_class;
        if (const int result = registry.open(request, &net); result != DEFT_NET_SUCCESS) {
            return who + "no network: " + result_text(result);
        }
        Side side{index, net, registry, peer, options, std::mt19937_64(options.seed)};
        scenario.run(side);
        peer.barrier();
        check(net.release(), *net.net(), "finalize");
        return "";
    } catch (const std::exception& error) {
        return who + error.what();
    }
}

struct Pair {
    deft::UniqueFd ends[2];
    Pair() {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
            throw DriveError(std::string("socketpair: ") + strerror(errno));
        }
        ends[0].reset(fds[0]);
        ends[1].reset(fds[1]);
    }
};

void receive_all(int fd, void* to, size_t bytes, int patience_s) {
    char* place = static_cast<char*>(to);
    while (bytes > 0) {
        pollfd wait{fd, POLLIN, 0};
        // The peer may rightly be busy for as long as its own patience.
        if (poll(&wait, 1, 2 * patience_s * 1000) == 0) {
            throw DriveError("the other side does not come to the meeting point");
        }
        const ssize_t received = recv(fd, place, bytes, 0);
        if (received < 0 && errno == EINTR) {
            continue;
        }
        if (received <= 0) {
            throw DriveError("the other side gave up");
        }
        place += received;
        bytes -= received;
    }
}

}  // namespace

std::vector<Handle> Rendezvous::exchange(const std::vector<Handle>& ours) {
    const uint64_t count = ours.size();
    std::string message(reinterpret_cast<const char*>(&count), sizeof count);
    for (const Handle& handle : ours) {
        message.append(handle.data(), handle.size());
    }
    if (send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(message.size())) {
        throw DriveError("the other side gave up");
    }
    uint64_t theirs = 0;
    receive_all(fd_.get(), &theirs, sizeof theirs, patience_s_);
    std::vector<Handle> handles(theirs);
    for (Handle& handle : handles) {
        receive_all(fd_.get(), handle.data(), handle.size(), patience_s_);
    }
    return handles;
}

Connections Side::connect(size_t outgoing, size_t incoming) {
    if (index == 1) {
        std::swap(outgoing, incoming);
    }
    const auto devices = [&](size_t count) {
        std::vector<int> list(count);
        for (size_t i = 0; i < count; ++i) {
            list[i] = static_cast<int>(i) % net.devices();
        }
        return list;
    };
    return establish(
        net, devices(outgoing), devices(incoming),
        [&](const std::vector<Handle>& ours) { return peer.exchange(ours); },
        after_seconds(options.patience_s));
}

size_t Side::random_size(std::mt19937_64& random) const {
    switch (random() % 8) {
        case 0:
            return 0;
        case 1:
            return 1;
        case 2:
            return options.largest;
        default: {
            const size_t bound = options.largest >> (random() % 16);
            return random() % (bound + 1);
        }
    }
}

void check_properties(const CommNet& net, int device) {
    constexpr uint64_t kUnset = 0xa5a5a5a5a5a5a5a5;  // table_net's pattern
    const auto unset = [](auto value) { return value == static_cast<decltype(value)>(kUnset); };
    Properties p;
    check(net->get_properties(device, &p), *net.net(), "getProperties");
    if (p.name == nullptr || p.name[0] == '\0' || unset(reinterpret_cast<uintptr_t>(p.name))) {
        wrong(net, device, "no name");
    }
    struct stat status;
    if (p.pciPath != nullptr &&
        (unset(reinterpret_cast<uintptr_t>(p.pciPath)) || stat(p.pciPath, &status) != 0)) {
        wrong(net, device, "pciPath is neither NULL nor an existing folder");
    }
    if (unset(p.guid) || unset(p.port) || unset(p.regIsGlobal) || unset(p.forceFlush)) {
        wrong(net, device, "guid, port, regIsGlobal or forceFlush was left unset");
    }
    if (p.ptrSupport <= 0 || (p.ptrSupport & DEFT_NET_PTR_HOST) == 0 ||
        (p.ptrSupport & ~(DEFT_NET_PTR_HOST | DEFT_NET_PTR_CUDA | DEFT_NET_PTR_DMABUF)) != 0) {
        wrong(net, device, "ptrSupport is " + std::to_string(p.ptrSupport));
    }
    if (p.speed < 0 || unset(p.speed)) {
        wrong(net, device, "speed is " + std::to_string(p.speed));
    }
    if (!(p.latency >= 0 && p.latency < 1e6f)) {
        wrong(net, device, "latency is " + std::to_string(p.latency));
    }
    if (p.maxComms <= 0 || p.maxRecvs < 1 || p.maxRecvs > 8) {
        wrong(
            net, device,
            "maxComms " + std::to_string(p.maxComms) + ", maxRecvs " + std::to_string(p.maxRecvs));
    }
    if (p.netDeviceType != DEFT_NET_DEVICE_HOST ||
        p.netDeviceVersion != DEFT_NET_DEVICE_HOST_VERSION) {
        wrong(net, device, "netDeviceType or netDeviceVersion is not that of a host device");
    }
    if (p.vProps.ndevs < 1 || p.vProps.ndevs > DEFT_NET_MAX_DEVS_V12 || unset(p.vProps.devs[0])) {
        wrong(net, device, "vProps has " + std::to_string(p.vProps.ndevs) + " members");
    }
    for (const size_t bytes : {p.maxP2pBytes, p.maxCollBytes}) {
        if (bytes == 0 || bytes > DEFT_NET_MAX_BYTES) {
            wrong(net, device, "maxP2pBytes or maxCollBytes is " + std::to_string(bytes));
        }
    }
    if (p.maxMultiRequestSize != 1 || unset(p.railId) || unset(p.planeId)) {
        wrong(net, device, "maxMultiRequestSize, railId or planeId");
    }
}

std::string run_in_threads(const Scenario& scenario, const RulesOptions& options) {
    Pair pair;
    NetRegistry registry;
    std::string results[2];
    std::thread threads[2];
    for (int i = 0; i < 2; ++i) {
        threads[i] = std::thread([&, i] {
            results[i] = run_side(scenario, options, i, registry, std::move(pair.ends[i]));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return results[0] + (results[0].empty() || results[1].empty() ? "" : "; ") + results[1];
}

std::string run_in_processes(const Scenario& scenario, const RulesOptions& options) {
    Pair pair;
    Pair reports;
    std::string all;
    pid_t children[2];
    for (int i = 0; i < 2; ++i) {
        children[i] = fork();
        if (children[i] != 0) {
            continue;
        }
        pair.ends[1 - i].reset();
        alarm(10 * options.patience_s);  // whatever happens, it ends
        std::string result;
        {
            NetRegistry registry;
            result = run_side(scenario, options, i, registry, std::move(pair.ends[i]));
        }
        if (!result.empty()) {
            result += "; ";
            [[maybe_unused]] const ssize_t sent =
                send(reports.ends[1].get(), result.data(), result.size(), MSG_NOSIGNAL);
        }
        _exit(result.empty() ? 0 : 1);
    }
    pair.ends[0].reset();
    pair.ends[1].reset();
    reports.ends[1].reset();
    char text[4096];
    for (ssize_t bytes; (bytes = recv(reports.ends[0].get(), text, sizeof text, 0)) > 0;) {
        all.append(text, bytes);
    }
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status)) {
            all += std::string("a process died: ") + strsignal(WTERMSIG(status)) + "; ";
        } else if (WEXITSTATUS(status) != 0 && all.empty()) {
            all += "a process left with status " + std::to_string(WEXITSTATUS(status));
        }
    }
    return all;
}

}  // namespace softdev::net
