// SPDX-License-Identifier: Apache-2.0
// Two hosts whose link eth0 is a RoCE port of the software verbs device; DEFT_RDMA=replace. Every
// byte is compared.
//
// usage: rdma_links LIBRARY VERBS CUDA CASE     VERBS, CUDA: the stand-ins' libraries
//   both       TCP has eth1: both links carry
//   dies       the same, and the port is down for a while
//   alone      the same, and eth1, which all connections came in by, is down for a while
//   shared     TCP has eth0, too, whose wire is the port's, and carries over eth1 only
//   one-sided  only the sender has a port
//   late       the port is not active when the processes start, and is for a second connection
//   aside      DEFT_RDMA=aside: the port is not touched
//   gpu        as dies, and messages are in a GPU's memory: TCP has them while the port is down
// Exit status 77: namespaces are not allowed here.
#include <dlfcn.h>

#include "tests/system/plugin/two_links.h"
#include "tests/unit/topology/sysfs_tree.h"

namespace {

constexpr std::size_t kFaultAt = 60;  // messages received when the fault comes
constexpr auto kDark = std::chrono::milliseconds(1500);
constexpr auto kLooks = std::chrono::milliseconds(1100);  // at inactive ports: once a second

std::string case_name;

std::size_t messages() {
    return case_name == "late" ? 120 : 400;
}

void describe_port(deft::test::SysfsTree& tree, int host) {
    deft::test::SysfsTree::Port port;
    port.layer = "Ethernet";
    port.state = case_name == "late" ? "1: DOWN" : "4: ACTIVE";
    port.rate = "100 Gb/sec (4X EDR)";
    port.gid = "fe80:0000:0000:0000:0000:0000:0000:0001";
    port.interface = "eth0";
    tree.port("soft0", 1, port);
    tree.gid("soft0", 1, 3, "0000:0000:0000:0000:0000:ffff:0a4d:000" + std::to_string(host),
             "eth0");
    tree.put("soft0/ports/1/gid_attrs/types/0", "IB/RoCE v1");
    tree.put("soft0/ports/1/gid_attrs/types/3", "RoCE v2");
}

// The stand-in's driver takes bytes of its own alone.
void use_gpu(const char* cuda) {
    void* const library = dlopen(cuda, RTLD_NOW | RTLD_GLOBAL);
    const auto call = [&](const char* name, auto... arguments) {
        auto* const function =
            reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(library, name));
        if (function == nullptr || function(arguments...) != 0) {
            die("%s failed", name);
        }
    };
    static void* context = nullptr;
    call("cuInit", 0U);
    call("cuDevicePrimaryCtxRetain", &context, 0);
    call("cuCtxPushCurrent_v2", context);
    gpu_memory = [call](std::size_t bytes) {
        static unsigned long long address = 0;
        call("cuMemAlloc_v2", &address, bytes);
        return reinterpret_cast<std::byte*>(address);
    };
}

[[noreturn]] void run_end(const char* library, const char* cuda, bool sender, int control) {
    deft::test::SysfsTree tree;
    if (case_name != "one-sided" || sender) {
        describe_port(tree, sender ? 1 : 2);
    }
    if (case_name == "gpu") {
        tree.put("../../module/nvidia_peermem/version", "1");
        use_gpu(cuda);
    }
    setenv("DEFT_SYSFS", tree.root().c_str(), 1);
    Job(library, sender, control, messages()).run();
    char go = 0;
    if (case_name == "late" && read(control, &go, 1) == 1) {
        tree.put("soft0/ports/1/state", "4: ACTIVE");
        std::this_thread::sleep_for(kLooks);
        Job(library, sender, control, messages()).run();
    }
    std::filesystem::remove_all(tree.root());
    _exit(0);
}

Fault fault_of_case(pid_t receiver) {
    const bool port = case_name == "dies" || case_name == "gpu";
    const char* const link = port ? "eth0" : case_name == "alone" ? "eth1" : "";
    Fault fault;
    fault.at = kFaultAt;
    fault.lasts = kDark;
    if (*link != '\0') {
        fault.set = takes_down(link, receiver);
    }
    return fault;
}

void judge(const std::string& log, std::uint64_t port, std::uint64_t tcp) {
    const std::uint64_t all = all_bytes(messages());
    std::printf("%s: %llu MB: %llu over the port's link, %llu over the other\n", case_name.c_str(),
                static_cast<unsigned long long>(all / 1000000),
                static_cast<unsigned long long>(port / 1000000),
                static_cast<unsigned long long>(tcp / 1000000));
    if (case_name != "aside") {  // there the test takes a communicator away from NCCL's IB
        expect_lines(log, {" WARN "}, false);
    }
    if (case_name == "both" || case_name == "shared") {
        if (port < all / 3 || tcp < all / 10) {
            die("a link did not carry its part");
        }
        expect_lines(log, {"RDMA port soft0:1 (roce), 100000 Mbit/s"}, true);
        expect_lines(log, {" is down: "}, false);
    } else if (case_name == "dies") {
        expect_lines(log, {"path soft0:1", " is down: ", " is up: "}, true);
    } else if (case_name == "alone") {
        if (port < all / 3) {
            die("the port did not carry on alone");
        }
        expect_lines(log, {"path eth1", " is down: "}, true);
        expect_lines(log, {"the peer's process has ended"}, false);
    } else if (case_name == "gpu") {
        if (port < all / 3 || tcp < all / 50) {
            die("a link did not carry its part");
        }
        expect_lines(log, {"GPU memory over RDMA: peer memory", " is down: ", " is up: "}, true);
    } else if (case_name == "late") {
        if (port < all / 3 || tcp < all + all / 10) {
            die("the port did not carry its part of the second connection alone");
        }
        expect_lines(log, {"RDMA port soft0:1 (roce), 100000 Mbit/s"}, true);
    } else if (port > all / 50) {
        die("something went over the port's link");
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) {
        die("usage: rdma_links LIBRARY VERBS CUDA CASE");
    }
    become_root(arguments);
    case_name = arguments[4];
    const std::string log = "/tmp/deft-rdma-links-" + std::to_string(getpid()) + ".log";
    setenv("DEFT_LOG", "info", 1);
    setenv("DEFT_LOG_FILE", log.c_str(), 1);
    setenv("DEFT_RDMA", case_name == "aside" ? "aside" : "replace", 1);
    setenv("NCCL_IBVERBS_LIB", arguments[2], 1);
    setenv("SOFTDEV_VERBS", "soft0 eth0 roce", 1);
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", case_name == "shared" ? "eth" : "=eth1", 1);
    End a = start_end([&](int control) { run_end(arguments[1], arguments[3], true, control); });
    End b = start_end([&](int control) { run_end(arguments[1], arguments[3], false, control); });
    if (!join(a, b)) {
        return kSkipped;
    }
    connect_ends(a, b);
    bool done = follow(b, fault_of_case(b.pid));
    if (done && case_name == "late") {
        let_go(a, b);
        connect_ends(a, b);
        done = follow(b, {});
    }
    const std::uint64_t port = done ? sent_bytes(a.pid, "eth0") : 0;
    const std::uint64_t tcp = done ? sent_bytes(a.pid, "eth1") : 0;
    const std::string text = finish(a, b, log);
    judge(text, port, tcp);
    return 0;
}
