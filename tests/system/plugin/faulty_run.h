// SPDX-License-Identifier: Apache-2.0
// The jobs of message_job.h seen from outside: a fault that comes and goes meanwhile, and their
// end.
#pragma once

#include <poll.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "tests/system/plugin/message_job.h"

struct Fault {
    std::function<void(bool on)> set;  // empty: there is none
    std::size_t at = 0;                // messages received when it comes
    Clock::duration lasts{};
};

// Until the receiver has everything. False: it has ended before.
inline bool follow(const End& receiver, const Fault& fault) {
    std::size_t received = 0;
    bool on = false;
    bool over = !fault.set;
    bool done = false;
    Clock::time_point since;
    while (!done) {
        pollfd wait{receiver.control, POLLIN, 0};
        char bytes[64];
        const bool ready = poll(&wait, 1, 100) > 0;
        const ssize_t got = ready ? read(receiver.control, bytes, sizeof(bytes)) : 0;
        if (ready && got <= 0) {
            return false;
        }
        for (ssize_t i = 0; i < got; ++i) {
            received += bytes[i] == 'm' ? 1 : 0;
            if (bytes[i] == 'd') {
                done = true;
            }
        }
        if (!over && !on && received >= fault.at) {
            fault.set(true);
            on = true;
            since = Clock::now();
        } else if (on && (Clock::now() - since > fault.lasts || done)) {
            fault.set(false);
            on = false;
            over = true;
        }
    }
    return true;
}

// Both ends have everything, and may close their connection.
inline void let_go(const End& sender, const End& receiver) {
    char byte = 0;
    (void)!read(sender.control, &byte, 1);
    (void)!write(sender.control, "q", 1);
    (void)!write(receiver.control, "q", 1);
}

// Lets both ends go. What they have logged; dies if one has failed.
inline std::string finish(const End& sender, const End& receiver, const std::string& log) {
    let_go(sender, receiver);
    int sent = 1;
    int received = 1;
    waitpid(sender.pid, &sent, 0);
    waitpid(receiver.pid, &received, 0);
    std::ifstream file(log);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    unlink(log.c_str());
    if (sent != 0 || received != 0) {
        die("an end failed (%d, %d)\n%s", sent, received, text.c_str());
    }
    return text;
}
