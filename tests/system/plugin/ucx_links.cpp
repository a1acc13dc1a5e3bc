// SPDX-License-Identifier: Apache-2.0
// Two hosts with links over UCX (its TCP transport, on eth0) and over TCP (eth1), in the
// environment that `deft run` makes. Every byte is compared.
//
// usage: ucx_links LIBRARY CASE     the module is next to the library
//   both       both carry
//   dies       the same, and eth0 is down for a while
//   one-sided  only the sender has DEFT_UCX=on
//   refused    the environment is not prepared: one WARN, and all goes over TCP
// Exit status 77: namespaces are not allowed here.
#include "base/ucx_environment.h"
#include "tests/system/plugin/two_links.h"

namespace {

constexpr std::size_t kMessages = 400;
constexpr std::size_t kFaultAt = 60;  // messages received when the fault comes
constexpr auto kDark = std::chrono::milliseconds(1500);

std::string case_name;

[[noreturn]] void run_end(const char* library, bool sender, int control) {
    if (case_name == "one-sided" && !sender) {
        unsetenv("DEFT_UCX");
    }
    Job(library, sender, control, kMessages).run();
    _exit(0);
}

Fault fault_of_case(pid_t receiver) {
    Fault fault;
    fault.at = kFaultAt;
    fault.lasts = kDark;
    if (case_name == "dies") {
        fault.set = takes_down("eth0", receiver);
    }
    return fault;
}

std::size_t count_of(const std::string& log, const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) {
        ++count;
    }
    return count;
}

void judge(const std::string& log, std::uint64_t ucx, std::uint64_t tcp) {
    const std::uint64_t all = all_bytes(kMessages);
    std::printf("%s: %llu MB: %llu over UCX, %llu over TCP\n", case_name.c_str(),
                static_cast<unsigned long long>(all / 1000000),
                static_cast<unsigned long long>(ucx / 1000000),
                static_cast<unsigned long long>(tcp / 1000000));
    if (case_name == "refused") {
        if (count_of(log, " WARN ") != 2) {  // of each process
            die("not one WARN of each host in\n%s", log.c_str());
        }
        expect_lines(log,
                     {"DEFT_UCX=on: no links over UCX: UCX_MEM_MMAP_HOOK_MODE=none is not in "
                      "the environment"},
                     true);
    } else {
        expect_lines(log, {" WARN "}, false);
    }
    if (case_name == "both") {
        if (ucx < all / 4 || tcp < all / 10) {
            die("a link did not carry its part");
        }
        expect_lines(log, {"UCX link eth0"}, true);
        expect_lines(log, {" is down: "}, false);
    } else if (case_name == "dies") {
        expect_lines(log, {"path eth0", " is down: ", " is up: "}, true);
    } else if (ucx > all / 50) {
        die("something went over UCX");
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        die("usage: ucx_links LIBRARY CASE");
    }
    become_root(arguments);
    case_name = arguments[2];
    const std::string log = "/tmp/deft-ucx-links-" + std::to_string(getpid()) + ".log";
    setenv("DEFT_LOG", "info", 1);
    setenv("DEFT_LOG_FILE", log.c_str(), 1);
    setenv("DEFT_UCX", "on", 1);
    setenv("DEFT_UCX_DEVICES", "eth0", 1);
    setenv("UCX_TLS", "tcp", 1);
    for (const deft::Assignment& needed : deft::kUcxEnvironment) {
        case_name == "refused" ? unsetenv(needed.name) : setenv(needed.name, needed.value, 1);
    }
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", "=eth1", 1);
    End a = start_end([&](int control) { run_end(arguments[1], true, control); });
    End b = start_end([&](int control) { run_end(arguments[1], false, control); });
    if (!join(a, b)) {
        return kSkipped;
    }
    connect_ends(a, b);
    const bool done = follow(b, fault_of_case(b.pid));
    const std::uint64_t ucx = done ? sent_bytes(a.pid, "eth0") : 0;
    const std::uint64_t tcp = done ? sent_bytes(a.pid, "eth1") : 0;
    judge(finish(a, b, log), ucx, tcp);
    return 0;
}
