// SPDX-License-Identifier: Apache-2.0
// Two hosts that are joined by eth0 and eth1: what each carried, and what was said of it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>

#include "tests/system/plugin/faulty_run.h"

// Of 400 and 200 Mbit/s. False, and both ends are killed: this user may not make links.
inline bool join(const End& a, const End& b) {
    if (make_link(0, "400mbit", a.pid, b.pid) && make_link(1, "200mbit", a.pid, b.pid)) {
        return true;
    }
    std::printf("skipped: no veth links for this user\n");
    kill(a.pid, SIGKILL);
    kill(b.pid, SIGKILL);
    return false;
}

// That a host has sent over the link, by the kernel's count.
inline std::uint64_t sent_bytes(pid_t pid, const char* link) {
    const std::string file = "/tmp/deft-two-links-" + std::to_string(getpid());
    std::uint64_t bytes = 0;
    if (!run(in_namespace(pid, std::string("ip -s -j link show ") + link + " > " + file))) {
        die("no counters of %s", link);
    }
    std::ifstream in(file);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    unlink(file.c_str());
    const auto tx = text.find("\"tx\":{\"bytes\":");
    if (tx == text.npos || std::sscanf(text.c_str() + tx, "\"tx\":{\"bytes\":%lu", &bytes) != 1) {
        die("no counters in %s", text.c_str());
    }
    return bytes;
}

// Of a job's messages.
inline std::uint64_t all_bytes(std::size_t messages) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < messages; ++i) {
        sum += size_of(i);
    }
    return sum;
}

// A fault that takes the host's link down.
inline std::function<void(bool)> takes_down(const char* link, pid_t host) {
    return [link, host](bool on) {
        const char* const state = on ? "down" : "up";
        if (!run(in_namespace(host, std::string("ip link set ") + link + " " + state))) {
            die("could not set %s %s", link, state);
        }
    };
}

// All of these in the log, or none.
inline void expect_lines(const std::string& log, std::initializer_list<const char*> lines,
                         bool there) {
    for (const char* line : lines) {
        if ((log.find(line) != log.npos) != there) {
            die("%s line '%s' in\n%s", there ? "no" : "a", line, log.c_str());
        }
    }
}
