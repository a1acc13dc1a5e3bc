// SPDX-License-Identifier: Apache-2.0
// Networks of many shapes between two processes, each in a network namespace of its own: only IPv6,
// only link-local addresses, a mixture, more addresses than a handle holds, links that do not reach
// each other. Every byte is compared, and every link that can must have carried some.
//
// usage: network_shapes v6|linklocal|mixed|many|islands
// Exit status 77: namespaces or IPv6 are not to be had here.
#include <poll.h>

#include <vector>

#include "base/link_stats.h"
#include "tests/system/plugin/two_hosts.h"
#include "topology/interfaces.h"

extern "C" {
extern const deft_net_v11_t ncclNetPlugin_v11;
}

namespace {

// On a loaded machine one unshaped link may carry dozens of them before the next one has shown that
// it carries full-size pieces.
constexpr std::size_t kMessages = 240;
constexpr std::size_t kLargest = 4 << 20;

struct Shape {
    const char* name;
    int links;
    int carrying;  // links that must carry
};
constexpr Shape kShapes[] = {
    {"v6", 2, 2}, {"linklocal", 2, 2}, {"mixed", 2, 2}, {"many", 12, 12}, {"islands", 2, 1}};

// Addresses of link `i` at end 1 or 2; "" for none.
std::string address_of(const std::string& shape, int i, int end) {
    const std::string link = std::to_string(i);
    const std::string host = std::to_string(end);
    const std::string v4 = "10.77." + link + "." + host + "/24";
    const std::string v6 = "fd77:0:0:" + link + "::" + host + "/64 nodad";
    if (shape == "v6") {
        return v6;
    }
    if (shape == "linklocal") {
        return "fe80::" + link + host + "/64 nodad";
    }
    if (shape == "mixed") {
        return i == 0 ? v4 : v6;
    }
    return shape == "islands" && i == 1 && end == 2 ? "10.99.1.2/24" : v4;
}

std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 11 + at * 7 + (at >> 10)) & 0xff);
}

void await_links(int links) {
    const auto start = Clock::now();
    int up = 0;
    while (up < links && Clock::now() - start < kPatience) {
        up = 0;
        for (const deft::Interface& link : deft::list_interfaces()) {
            up += link.name.starts_with("eth") && link.up && !link.addresses.empty() ? 1 : 0;
        }
        poll(nullptr, 0, 5);
    }
}

void move(void* comm, bool sender, std::vector<std::byte>& data, std::size_t message,
          Clock::time_point start) {
    const deft_net_v11_t& net = ncclNetPlugin_v11;
    const std::size_t size = message % 5 == 4 ? message * 10 : kLargest - message;
    int tag = 0;
    void* none = nullptr;
    void* request = nullptr;
    void* buffer = data.data();
    std::size_t room = data.size();
    for (std::size_t i = 0; sender && i < size; ++i) {
        data[i] = pattern(message, i);
    }
    int done = 0;
    int got = 0;
    while (done == 0) {
        int result = 0;
        if (request != nullptr) {
            result = net.test(request, &done, &got);
        } else if (sender) {
            result = net.isend(comm, buffer, size, tag, nullptr, nullptr, &request);
        } else {
            result = net.irecv(comm, 1, &buffer, &room, &tag, &none, &none, &request);
        }
        if (result != 0 || Clock::now() - start > 3 * kPatience) {
            die("%s: message %zu: result %d", sender ? "sender" : "receiver", message, result);
        }
    }
    if (static_cast<std::size_t>(got) != size) {
        die("message %zu: %d bytes", message, got);
    }
    for (std::size_t i = 0; !sender && i < size; ++i) {
        if (data[i] != pattern(message, i)) {
            die("message %zu differs at byte %zu", message, i);
        }
    }
}

// The links that carried something.
int count_carrying(bool sender) {
    int carried = 0;
    const deft::LinkStats& stats = deft::LinkStats::process();
    for (std::size_t i = 0; i < stats.size(); ++i) {
        const std::uint64_t bytes =
            sender ? stats[i].bytes_sent.load() : stats[i].bytes_received.load();
        std::printf("%s %s: %llu bytes\n", sender ? "sender" : "receiver", stats[i].name,
                    static_cast<unsigned long long>(bytes));
        carried += bytes > 0 ? 1 : 0;
    }
    std::fflush(stdout);
    return carried;
}

[[noreturn]] void run_end(bool sender, int links, int control) {
    const deft_net_v11_t& net = ncclNetPlugin_v11;
    await_links(links);
    void* context = nullptr;
    deft_net_comm_config_t config{DEFT_NET_TRAFFIC_CLASS_UNDEF};
    if (net.init(&context, 1, &config, nullptr, nullptr) != 0) {
        die("init failed");
    }
    const auto start = Clock::now();
    for (int connection = 0; connection < 2; ++connection) {
        char handle[DEFT_NET_HANDLE_MAXSIZE] = {};
        void* listener = nullptr;
        void* comm = nullptr;
        deft_net_device_handle_t* device = nullptr;
        if (sender) {
            if (read(control, handle, sizeof(handle)) != sizeof(handle)) {
                die("no handle");
            }
        } else if (net.listen(context, 0, handle, &listener) != 0 ||
                   write(control, handle, sizeof(handle)) != sizeof(handle)) {
            die("listen failed");
        }
        while (comm == nullptr) {
            if ((sender ? net.connect(context, 0, handle, &comm, &device)
                        : net.accept(listener, &comm, &device)) != 0 ||
                Clock::now() - start > kPatience) {
                die("%s failed", sender ? "connect" : "accept");
            }
        }
        std::vector<std::byte> data(kLargest);
        for (std::size_t message = 0; message < kMessages; ++message) {
            move(comm, sender, data, message, start);
        }
        char byte = 'd';
        (void)!write(control, &byte, 1);
        (void)!read(control, &byte, 1);  // both have everything
        if ((sender ? net.closeSend(comm) : net.closeRecv(comm)) != 0 ||
            (!sender && net.closeListen(listener) != 0)) {
            die("close failed");
        }
    }
    const int carried = count_carrying(sender);
    if (net.finalize(context) != 0) {
        die("finalize failed");
    }
    (void)!write(control, &carried, sizeof(carried));
    _exit(0);
}

bool make_link(const Shape& shape, int index, pid_t a, pid_t b) {
    const std::string name = "eth" + std::to_string(index);
    bool good = run("ip link add " + name + " netns " + std::to_string(a) +
                    " type veth peer name " + name + " netns " + std::to_string(b));
    for (const pid_t pid : {a, b}) {
        const std::string address = address_of(shape.name, index, pid == a ? 1 : 2);
        good = good &&
               run(in_namespace(pid, "ip link set " + name + " addrgenmode none 2>/dev/null; ") +
                   in_namespace(pid, "ip link set " + name + " up")) &&
               run(in_namespace(pid, "ip addr add " + address + " dev " + name));
    }
    return good;
}

// Every socket of this end is bound to its interface.
void expect_bound(const End& end, const Shape& shape) {
    const std::string bound =
        in_namespace(end.pid, "ss -Htn state established 2>/dev/null | grep -c '%eth'");
    std::string said;
    if (FILE* pipe = popen(bound.c_str(), "r")) {
        char text[64] = "";
        said = std::fgets(text, sizeof(text), pipe) != nullptr ? text : "";
        pclose(pipe);
    }
    std::printf("bound sockets: %s", said.c_str());
    if (!run("command -v ss >/dev/null")) {
        std::printf("no ss here: not checked\n");
    } else if (std::atoi(said.c_str()) != shape.links) {
        die("%d sockets should be bound to their interfaces", shape.links);
    }
}

}  // namespace

int main(int count, char** arguments) {
    const Shape* shape = nullptr;
    for (const Shape& each : kShapes) {
        shape = count == 2 && std::strcmp(each.name, arguments[1]) == 0 ? &each : shape;
    }
    if (shape == nullptr) {
        die("usage: network_shapes v6|linklocal|mixed|many|islands");
    }
    become_root(arguments);
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    alarm(170);
    const End a = start_end([&](int control) { run_end(true, shape->links, control); });
    const End b = start_end([&](int control) { run_end(false, shape->links, control); });
    for (int i = 0; i < shape->links; ++i) {
        if (!make_link(*shape, i, a.pid, b.pid)) {
            std::printf("skipped: no veth links with such addresses for this user\n");
            kill(a.pid, SIGKILL);
            kill(b.pid, SIGKILL);
            return kSkipped;
        }
    }
    (void)!write(a.control, "g", 1);
    (void)!write(b.control, "g", 1);
    for (int connection = 0; connection < 2; ++connection) {
        char handle[DEFT_NET_HANDLE_MAXSIZE];
        char byte = 0;
        if (read(b.control, handle, sizeof(handle)) != sizeof(handle) ||
            write(a.control, handle, sizeof(handle)) != sizeof(handle) ||
            read(a.control, &byte, 1) != 1 || read(b.control, &byte, 1) != 1) {
            die("an end failed");
        }
        if (connection == 0 && std::strcmp(shape->name, "islands") != 0) {
            // While both ends wait.
            expect_bound(a, *shape);
            expect_bound(b, *shape);
        }
        (void)!write(a.control, "q", 1);
        (void)!write(b.control, "q", 1);
    }
    for (const End& end : {a, b}) {
        int carried = 0;
        int status = 1;
        if (read(end.control, &carried, sizeof(carried)) != sizeof(carried) ||
            waitpid(end.pid, &status, 0) != end.pid || status != 0) {
            die("an end failed (%d)", status);
        }
        if (carried != shape->carrying) {
            die("%d links carried something, not %d", carried, shape->carrying);
        }
    }
    std::printf("%s: ok\n", shape->name);
    return 0;
}
