// SPDX-License-Identifier: Apache-2.0
// Two processes, each in a network namespace of its own, joined by two shaped veth links of unequal
// rate; the product is loaded with dlopen and moves messages of random sizes while a link is set
// down, deleted and made again, or swallows everything. Every byte is compared.
//
// usage: link_faults LIBRARY FAULT     FAULT: none, down, delete, blackhole
// Exit status 77: namespaces are not allowed here.
#include <poll.h>

#include <fstream>

#include "tests/system/plugin/message_job.h"

namespace {

constexpr std::size_t kMessages = 900;
constexpr std::size_t kFaultAt = 150;  // messages received when the fault comes

[[noreturn]] void run_end(const char* library, bool sender, int control) {
    Job(library, sender, control, kMessages).run();
    _exit(0);
}

void inject(const std::string& fault, bool on, pid_t a, pid_t b) {
    bool good = true;
    if (fault == "down") {
        good = run(in_namespace(b, std::string("ip link set eth0 ") + (on ? "down" : "up")));
    } else if (fault == "delete") {
        good = on ? run(in_namespace(a, "ip link del eth0")) : make_link(0, "400mbit", a, b);
    } else if (fault == "blackhole") {
        good = lose_frames(a, 0, 2, on) && lose_frames(b, 0, 1, on);
    }
    if (!good) {
        die("could not inject %s", fault.c_str());
    }
}

// Until the receiver has everything; the fault comes and goes meanwhile.
void run_fault(const std::string& fault, const End& a, const End& b) {
    std::size_t received = 0;
    bool on = false;
    bool over = fault == "none";
    bool receiver_done = false;
    Clock::time_point since;
    // A silent path is given up only after some seconds.
    const auto dark = std::chrono::seconds(fault == "blackhole" ? 5 : 2);
    while (!receiver_done) {
        pollfd wait{b.control, POLLIN, 0};
        const int ready = poll(&wait, 1, 100);
        char bytes[64];
        const ssize_t got = ready > 0 ? read(b.control, bytes, sizeof(bytes)) : 0;
        if (ready > 0 && got <= 0) {
            break;
        }
        for (ssize_t i = 0; i < got; ++i) {
            received += bytes[i] == 'm' ? 1 : 0;
            if (bytes[i] == 'd') {
                receiver_done = true;
            }
        }
        if (!over && !on && received >= kFaultAt) {
            inject(fault, true, a.pid, b.pid);
            on = true;
            since = Clock::now();
        } else if (on && (Clock::now() - since > dark || receiver_done)) {
            inject(fault, false, a.pid, b.pid);
            on = false;
            over = true;
        }
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        die("usage: link_faults LIBRARY none|down|delete|blackhole");
    }
    become_root(arguments);
    const std::string fault = arguments[2];
    const std::string log = "/tmp/deft-link-faults-" + std::to_string(getpid()) + ".log";
    setenv("DEFT_LOG", "info", 1);
    setenv("DEFT_LOG_FILE", log.c_str(), 1);
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    End a = start_end([&](int control) { run_end(arguments[1], true, control); });
    End b = start_end([&](int control) { run_end(arguments[1], false, control); });
    if (!make_link(0, "400mbit", a.pid, b.pid) || !make_link(1, "200mbit", a.pid, b.pid)) {
        std::printf("skipped: no veth links for this user\n");
        kill(a.pid, SIGKILL);
        kill(b.pid, SIGKILL);
        return kSkipped;
    }
    connect_ends(a, b);
    run_fault(fault, a, b);
    char byte = 0;
    (void)!read(a.control, &byte, 1);
    (void)!write(a.control, "q", 1);
    (void)!write(b.control, "q", 1);
    int status_a = 1;
    int status_b = 1;
    waitpid(a.pid, &status_a, 0);
    waitpid(b.pid, &status_b, 0);
    std::ifstream file(log);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    unlink(log.c_str());
    if (status_a != 0 || status_b != 0) {
        die("an end failed (%d, %d)\n%s", status_a, status_b, text.c_str());
    }
    if (fault != "none" && text.find(" is down: ") == std::string::npos) {
        die("the fault %s left no trace in the log\n%s", fault.c_str(), text.c_str());
    }
    if (text.find("WARN connection") != std::string::npos) {
        die("unexpected warning\n%s", text.c_str());
    }
    std::printf("%s: ok\n", fault.c_str());
    return 0;
}
