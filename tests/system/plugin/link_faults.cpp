// SPDX-License-Identifier: Apache-2.0
// Two processes, each in a network namespace of its own, joined by two shaped veth links of unequal
// rate; the product is loaded with dlopen and moves messages of random sizes while a link is set
// down, deleted and made again, or swallows everything. Every byte is compared.
//
// usage: link_faults LIBRARY FAULT     FAULT: none, down, delete, blackhole
// Exit status 77: namespaces are not allowed here.
#include "tests/system/plugin/two_links.h"

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
    if (!join(a, b)) {
        return kSkipped;
    }
    connect_ends(a, b);
    Fault what;
    if (fault != "none") {
        what.set = [&](bool on) { inject(fault, on, a.pid, b.pid); };
    }
    what.at = kFaultAt;
    // A silent path is given up only after some seconds.
    what.lasts = std::chrono::seconds(fault == "blackhole" ? 5 : 2);
    (void)follow(b, what);
    const std::string text = finish(a, b, log);
    if (fault != "none" && text.find(" is down: ") == std::string::npos) {
        die("the fault %s left no trace in the log\n%s", fault.c_str(), text.c_str());
    }
    if (text.find("WARN connection") != std::string::npos) {
        die("unexpected warning\n%s", text.c_str());
    }
    std::printf("%s: ok\n", fault.c_str());
    return 0;
}
