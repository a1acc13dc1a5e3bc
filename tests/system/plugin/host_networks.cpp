// SPDX-License-Identifier: Apache-2.0
// Which links two hosts use, with networks as operators build them: cards in bridges, hosts known
// by an address of `lo`, addresses that both hosts have, links without a carrier when the processes
// start. Each end is a process in a network namespace of its own; the product is loaded with dlopen
// and chooses by itself. Every byte is compared; the kernel's counters say what was used.
//
// usage: host_networks LIBRARY CASE    (the names below, in main)
// Exit status 77: namespaces are not allowed here.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>

#include "tests/system/plugin/two_hosts.h"

namespace {

constexpr std::size_t kMessage = 1 << 18;
constexpr std::uint64_t kCarried = 4 << 20;  // bytes that are no chance

// What NCCL is told.
struct Told {
    int devices = 0;
    int speed = 0;
    std::uint64_t guid = 0;
};

struct Host {
    End end;
    int number = 0;  // 1 or 2
    bool ip(const std::string& what) const { return run(in_namespace(end.pid, "ip " + what)); }
    std::string said(const std::string& command) const {
        std::string text;
        if (FILE* pipe = popen(in_namespace(end.pid, command).c_str(), "r")) {
            char buffer[4096];
            while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) {
                text += buffer;
            }
            pclose(pipe);
        }
        return text;
    }
    std::string address(int network) const {
        return "10.78." + std::to_string(network) + "." + std::to_string(number);
    }
    // Bytes that this interface has sent and received.
    std::uint64_t traffic(const std::string& interface) const {
        std::istringstream lines(said("cat /proc/net/dev"));
        for (std::string line; std::getline(lines, line);) {
            const std::size_t colon = line.find(':');
            const std::size_t begin = line.find_first_not_of(' ');
            if (colon == line.npos || line.substr(begin, colon - begin) != interface) {
                continue;
            }
            std::istringstream numbers(line.substr(colon + 1));
            std::array<std::uint64_t, 9> columns{};
            for (std::uint64_t& column : columns) {
                numbers >> column;
            }
            return columns[0] + columns[8];
        }
        return 0;
    }
};

using Both = std::array<Host, 2>;

bool cable(const Both& hosts, const std::string& name) {
    bool good = run("ip link add " + name + " netns " + std::to_string(hosts[0].end.pid) +
                    " type veth peer name " + name + " netns " + std::to_string(hosts[1].end.pid));
    for (const Host& host : hosts) {
        good = good && host.ip("link set " + name + " up");
    }
    return good;
}

bool await(const std::function<bool()>& what) {
    const auto start = Clock::now();
    while (!what()) {
        if (Clock::now() - start > kPatience) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
}

bool has_carrier(const Host& host, const std::string& name) {
    return host.said("ip -o link show dev " + name).find("LOWER_UP") != std::string::npos &&
           host.said("ip -o link show dev " + name).find("state DOWN") == std::string::npos;
}

std::string link_local(const Host& host, const std::string& name) {
    std::istringstream text(host.said("ip -6 -o addr show dev " + name + " scope link -tentative"));
    for (std::string word; text >> word;) {
        if (word.starts_with("fe80")) {
            return word.substr(0, word.find('/'));
        }
    }
    return {};
}

bool make_bridges(const Both& hosts) {
    bool good = cable(hosts, "enp1") && cable(hosts, "enp2");
    for (const Host& host : hosts) {
        for (const std::string i : {"1", "2"}) {
            good = good && host.ip("link add vmbr" + i + " type bridge forward_delay 0") &&
                   host.ip("link set enp" + i + " master vmbr" + i) &&
                   host.ip("link set vmbr" + i + " up") &&
                   host.ip("addr add " + host.address(std::stoi(i)) + "/24 dev vmbr" + i);
        }
        // A container engine's, of which both hosts have the same address.
        good = good && host.ip("link add docker0 type bridge") && host.ip("link set docker0 up") &&
               host.ip("addr add 172.17.0.1/16 dev docker0") &&
               host.ip("link add veth7 type veth peer name c7") &&
               host.ip("link set veth7 master docker0") && host.ip("link set veth7 up") &&
               host.ip("link set c7 up");
    }
    return good && await([&] {
               return has_carrier(hosts[0], "vmbr1") && has_carrier(hosts[0], "vmbr2") &&
                      has_carrier(hosts[1], "vmbr1") && has_carrier(hosts[1], "vmbr2");
           });
}

// Two uplinks with nothing but link-local addresses, and routes over both.
bool make_unnumbered(const Both& hosts) {
    bool good = cable(hosts, "swp1") && cable(hosts, "swp2");
    for (const Host& host : hosts) {
        good = good && host.ip("addr add " + host.address(9) + "/32 dev lo");
    }
    good =
        good && await([&] {
            return !link_local(hosts[0], "swp1").empty() && !link_local(hosts[0], "swp2").empty() &&
                   !link_local(hosts[1], "swp1").empty() && !link_local(hosts[1], "swp2").empty();
        });
    for (int i = 0; i < 2 && good; ++i) {
        const Host& host = hosts[static_cast<std::size_t>(i)];
        const Host& peer = hosts[static_cast<std::size_t>(1 - i)];
        good = host.ip("route add " + peer.address(9) + "/32 src " + host.address(9) +
                       " nexthop via inet6 " + link_local(peer, "swp1") + " dev swp1" +
                       " nexthop via inet6 " + link_local(peer, "swp2") + " dev swp2");
    }
    return good;
}

// A veth whose other end is in a namespace that nobody else sees.
bool hidden(const Host& host, const std::string& name) {
    static std::vector<End> keepers;
    keepers.push_back(start_end([](int control) {
        char byte = 0;
        (void)!read(control, &byte, 1);
        _exit(0);
    }));
    const std::string there = std::to_string(keepers.back().pid);
    return host.ip("link add " + name + " type veth peer name far netns " + there) &&
           run(in_namespace(keepers.back().pid, "ip link set far up"));
}

// Beside the network, a host-only one of which both hosts have the very same address. It has a
// carrier: its other end is in neither host.
bool make_doubled(const Both& hosts) {
    bool good = cable(hosts, "eth0");
    for (const Host& host : hosts) {
        good = good && host.ip("addr add " + host.address(0) + "/24 dev eth0") &&
               hidden(host, "hostonly0") && host.ip("link set hostonly0 up") &&
               host.ip("addr add 192.168.56.1/24 dev hostonly0");
    }
    return good && await([&] {
               return has_carrier(hosts[0], "eth0") && has_carrier(hosts[1], "hostonly0") &&
                      has_carrier(hosts[0], "hostonly0");
           });
}

// Both are behind a NAT of the same kind; IPv6 works.
bool make_same_nat(const Both& hosts) {
    bool good = cable(hosts, "eth0");
    for (const Host& host : hosts) {
        good = good && host.ip("addr add 10.0.2.15/24 dev eth0") &&
               host.ip("addr add fd78::" + std::to_string(host.number) + "/64 dev eth0 nodad");
    }
    return good && await([&] { return has_carrier(hosts[0], "eth0"); });
}

// The first of `links` has no carrier; the rest has, unless `all`.
bool make_late(const Both& hosts, bool all) {
    bool good = true;
    for (int i = 0; i < 2 && good; ++i) {
        const std::string name = "eth" + std::to_string(i);
        good = cable(hosts, name);
        for (const Host& host : hosts) {
            good = good && host.ip("addr add " + host.address(i) + "/24 dev " + name);
        }
        if (i == 0 || all) {
            good = good && hosts[1].ip("link set " + name + " down") &&
                   await([&] { return !has_carrier(hosts[0], name); });
        } else {
            good = good && await([&] { return has_carrier(hosts[0], name); });
        }
    }
    return good;
}

bool wake(const Both& hosts) {
    return hosts[1].ip("link set eth0 up");
}

// All links are in one network, and the receiver sends to each address of the sender through the
// link of the other: it has heard that one's answer to its question first (Linux: arp_ignore=0).
bool make_astray(const Both& hosts) {
    bool good = true;
    for (int i = 0; i < 2 && good; ++i) {
        const std::string name = "eth" + std::to_string(i);
        good = cable(hosts, name);
        for (const Host& host : hosts) {
            good = good && host.ip("addr add 10.79.0." + std::to_string(2 * host.number + i) +
                                   "/24 dev " + name);
        }
        good = good && await([&] { return has_carrier(hosts[0], name); });
    }
    return good && hosts[1].ip("route add 10.79.0.2/32 dev eth1 src 10.79.0.4") &&
           hosts[1].ip("route add 10.79.0.3/32 dev eth0 src 10.79.0.5");
}

bool make_many(const Both& hosts) {
    bool good = true;
    for (int i = 0; i < 4 && good; ++i) {
        const std::string name = "eth" + std::to_string(i);
        good = cable(hosts, name);
        for (const Host& host : hosts) {
            good = good && host.ip("addr add " + host.address(i) + "/24 dev " + name);
        }
        good = good && await([&] { return has_carrier(hosts[0], name); });
    }
    return good;
}

struct Case {
    const char* name;
    std::function<bool(const Both&)> make;
    bool wakes = false;                   // eth0 gets its carrier while the job runs
    std::vector<const char*> carrying{};  // interfaces that must carry
    std::vector<const char*> idle{};      // and must not
    int speed = 0;                        // Mbit/s NCCL is told; a veth says 10000
    int sender = 0;                       // no more descriptors than that; 0: as they are
    int receiver = 0;
    int connections = 1;
};

std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 5 + at * 11 + (at >> 8)) & 0xff);
}

// The first byte says whether this is the last message.
void fill(std::vector<std::byte>& data, std::size_t message, bool last) {
    for (std::size_t i = 0; i < kMessage; ++i) {
        data[i] = pattern(message, i);
    }
    data[0] = std::byte{last};
}

bool check_message(const std::vector<std::byte>& data, std::size_t message) {
    for (std::size_t i = 1; i < kMessage; ++i) {
        if (data[i] != pattern(message, i)) {
            die("message %zu differs at byte %zu", message, i);
        }
    }
    return data[0] == std::byte{1};
}

void move(const Connection& used, bool sender, std::vector<std::byte>& data, std::size_t message) {
    const deft_net_v11_t& net = *used.net;
    void* request = nullptr;
    void* buffer = data.data();
    void* none = nullptr;
    std::size_t room = kMessage;
    int tag = 0;
    int done = 0;
    const auto start = Clock::now();
    while (done == 0) {
        int size = 0;
        int result = 0;
        if (request != nullptr) {
            result = net.test(request, &done, &size);
        } else if (sender) {
            result = net.isend(used.comm, buffer, room, tag, nullptr, nullptr, &request);
        } else {
            result = net.irecv(used.comm, 1, &buffer, &room, &tag, &none, &none, &request);
        }
        if (result != 0 || Clock::now() - start > kPatience) {
            die("%s: message %zu: %d", sender ? "sender" : "receiver", message, result);
        }
    }
}

[[noreturn]] void run_end(const char* library, const Case& test, bool sender, int control) {
    if (const int most = sender ? test.sender : test.receiver; most > 0) {
        const rlimit limit{static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    const Connection first(library, sender, control, 0);
    const deft_net_v11_t& net = *first.net;
    std::vector<Connection> more;
    for (int i = 1; i < test.connections; ++i) {
        more.emplace_back(library, sender, control, 0);
    }
    Told told;
    deft_net_props_v11_t properties{};
    if (net.devices(&told.devices) != 0 || net.getProperties(0, &properties) != 0) {
        die("no properties");
    }
    told.speed = properties.speed;
    told.guid = properties.guid;
    (void)!write(control, &told, sizeof(told));
    std::vector<std::byte> data(kMessage);
    bool last = false;
    for (std::size_t message = 0; !last; ++message) {
        const std::size_t turn = message % static_cast<std::size_t>(test.connections);
        if (sender) {
            pollfd asked{control, POLLIN, 0};
            last = poll(&asked, 1, 0) > 0;
            fill(data, message, last);
        }
        move(turn == 0 ? first : more[turn - 1], sender, data, message);
        if (!sender) {
            last = check_message(data, message);
        }
    }
    // Both have everything: they leave together.
    char byte = 'd';
    (void)!write(control, &byte, 1);
    while (read(control, &byte, 1) == 1 && byte != 'q') {
    }
    first.close();
    for (const Connection& connection : more) {
        connection.close();
    }
    _exit(0);
}

void check(bool good, const char* what, const Told& told) {
    if (!good) {
        die("%s (%d devices, %d Mbit/s, guid %llx)", what, told.devices, told.speed,
            static_cast<unsigned long long>(told.guid));
    }
}

// Another process of this host: what it would tell NCCL at this moment.
Told ask(const char* library, pid_t there) {
    int pair[2];
    if (pipe(pair) != 0) {
        die("pipe");
    }
    const pid_t child = fork();
    if (child == 0) {
        const int fd = open(("/proc/" + std::to_string(there) + "/ns/net").c_str(), O_RDONLY);
        void* object =
            setns(fd, CLONE_NEWNET) == 0 ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : nullptr;
        const auto* net =
            object == nullptr
                ? nullptr
                : static_cast<const deft_net_v11_t*>(dlsym(object, "ncclNetPlugin_v11"));
        void* context = nullptr;
        deft_net_comm_config_t config{DEFT_NET_TRAFFIC_CLASS_UNDEF};
        Told told;
        deft_net_props_v11_t properties{};
        if (net != nullptr && net->init(&context, 1, &config, nullptr, nullptr) == 0 &&
            net->devices(&told.devices) == 0 && net->getProperties(0, &properties) == 0) {
            told.speed = properties.speed;
            told.guid = properties.guid;
        }
        _exit(write(pair[1], &told, sizeof(told)) == sizeof(told) ? 0 : 1);
    }
    close(pair[1]);
    Told told;
    if (read(pair[0], &told, sizeof(told)) != sizeof(told)) {
        die("the other process said nothing");
    }
    close(pair[0]);
    waitpid(child, nullptr, 0);
    return told;
}

const std::vector<Case>& all_cases() {
    static const std::vector<Case> cases = {
        {"bridges", make_bridges, false, {"enp1", "enp2"}, {"docker0"}, 20000},
        {"unnumbered", make_unnumbered, false, {}, {}, 10000},
        {"doubled", make_doubled, false, {"eth0"}, {"hostonly0"}, 20000},
        {"astray", make_astray, false, {}, {}, 20000},
        {"same-nat", make_same_nat, false, {"eth0"}, {}, 10000},
        {"late",
         [](const Both& hosts) { return make_late(hosts, false); },
         true,
         {"eth0", "eth1"},
         {},
         20000},
        {"all-late",
         [](const Both& hosts) { return make_late(hosts, true); },
         true,
         {"eth0"},
         {"lo"},
         20000},
        {"descriptors", make_many, false, {"eth0", "eth1", "eth2", "eth3"}, {}, 40000, 64, 64, 30},
        {"few-at-receiver", make_many, false, {"eth0", "eth1"}, {}, 40000, 1024, 64, 30}};
    return cases;
}

// Hands the handles over. True: the link that is to come up has been brought up meanwhile.
bool connect_hosts(const Case& test, const Both& hosts) {
    const int a = hosts[0].end.control;
    const int b = hosts[1].end.control;
    bool woken = false;
    for (int i = 0; i < test.connections; ++i) {
        char handle[DEFT_NET_HANDLE_MAXSIZE];
        if (read(b, handle, sizeof(handle)) != sizeof(handle) ||
            write(a, handle, sizeof(handle)) != sizeof(handle)) {
            die("the ends did not come up");
        }
        if (std::strcmp(test.name, "all-late") == 0) {
            woken = wake(hosts);
        }
    }
    return woken;
}

// They end with the sender's next message.
void end_hosts(const Both& hosts) {
    const int a = hosts[0].end.control;
    const int b = hosts[1].end.control;
    (void)!write(a, "q", 1);  // the sender waits then
    char byte = 0;
    if (read(a, &byte, 1) != 1 || read(b, &byte, 1) != 1) {
        die("an end failed");
    }
    (void)!write(a, "q", 1);
    (void)!write(b, "q", 1);
    for (const Host& host : hosts) {
        int status = 1;
        if (waitpid(host.end.pid, &status, 0) != host.end.pid || status != 0) {
            die("an end failed (%d)", status);
        }
    }
}

void run_case(const char* library, const Case& test, const Both& hosts) {
    const Told before = ask(library, hosts[0].end.pid);
    check(before.devices == 1 && before.speed == test.speed, "not these links", before);
    const int a = hosts[0].end.control;
    const int b = hosts[1].end.control;
    if (write(a, "g", 1) != 1 || write(b, "g", 1) != 1) {
        die("an end is gone");
    }
    const bool woken = connect_hosts(test, hosts);
    Told told;
    for (const int control : {a, b}) {
        if (read(control, &told, sizeof(told)) != sizeof(told)) {
            die("an end failed");
        }
        check(told.speed == test.speed && told.devices == 1, "not these links", told);
    }
    if (test.wakes && !woken && !wake(hosts)) {
        die("the link does not come up");
    }
    const bool carried = await([&] {
        return std::all_of(test.carrying.begin(), test.carrying.end(), [&](const char* name) {
            return hosts[0].traffic(name) > kCarried && hosts[1].traffic(name) > kCarried;
        });
    });
    for (const char* name : test.idle) {
        if (hosts[0].traffic(name) > kCarried) {
            die("%s should not carry", name);
        }
    }
    const Told after = ask(library, hosts[0].end.pid);
    end_hosts(hosts);
    check(
        after.devices == before.devices && after.speed == before.speed && after.guid == before.guid,
        "NCCL is told something else now", after);
    if (!carried) {
        die("a link that should carry does not");
    }
}

}  // namespace

int main(int count, char** arguments) {
    const Case* test = nullptr;
    for (const Case& each : all_cases()) {
        test = count == 3 && std::strcmp(each.name, arguments[2]) == 0 ? &each : test;
    }
    if (test == nullptr) {
        die("usage: host_networks LIBRARY CASE");
    }
    become_root(arguments);
    for (const char* name : {"DEFT_INTERFACES", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"}) {
        unsetenv(name);
    }
    alarm(170);
    const char* const library = arguments[1];
    Both hosts;
    for (int i = 0; i < 2; ++i) {
        Host& host = hosts[static_cast<std::size_t>(i)];
        host.number = i + 1;
        host.end = start_end([&](int control) { run_end(library, *test, i == 0, control); });
        (void)host.ip("link set lo up");
    }
    if (!test->make(hosts)) {
        std::printf("skipped: no such network for this user\n");
        kill(hosts[0].end.pid, SIGKILL);
        kill(hosts[1].end.pid, SIGKILL);
        return kSkipped;
    }
    run_case(library, *test, hosts);
    std::printf("%s: ok\n", test->name);
    return 0;
}
