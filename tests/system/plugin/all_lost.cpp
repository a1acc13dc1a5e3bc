// SPDX-License-Identifier: Apache-2.0
// Every link between two hosts goes silent in the midst of it and stays so: both ends have to get
// their error within DEFT_LINK_TIMEOUT, and can close at once.
//
// usage: all_lost LIBRARY LINKS
// Exit status 77: namespaces are not allowed here.
#include <poll.h>

#include "tests/system/plugin/two_hosts.h"

namespace {

using Nanos = std::chrono::nanoseconds;

constexpr std::size_t kSize = 1 << 20;
constexpr int kDepth = 4;
constexpr int kWarmUp = 50;          // messages
constexpr int kLimit = 6;            // seconds, DEFT_LINK_TIMEOUT
constexpr double kGrace = 2.5;       // for the ends to be scheduled and TCP's timers
constexpr double kCloseLimit = 2.0;  // seconds

Nanos::rep now() {
    return std::chrono::duration_cast<Nanos>(Clock::now().time_since_epoch()).count();
}

// Says 'w' once so many messages went through, and when it got its error and had closed.
void run_end(const char* library, std::size_t links, bool sender, int control) {
    const Connection connection(library, sender, control, links);
    const auto* const net = connection.net;
    std::vector<std::vector<char>> data(kDepth, std::vector<char>(kSize));
    void* requests[kDepth] = {};
    int result = 0;
    for (int message = 0; result == 0; ++message) {
        void*& request = requests[message % kDepth];
        for (int done = 0; request != nullptr && done == 0 && result == 0;) {
            result = net->test(request, &done, nullptr);
        }
        request = nullptr;
        void* bytes = data[static_cast<std::size_t>(message % kDepth)].data();
        std::size_t size = kSize;
        int tag = 0;
        void* none = nullptr;
        while (request == nullptr && result == 0) {
            result =
                sender
                    ? net->isend(connection.comm, bytes, size, tag, nullptr, nullptr, &request)
                    : net->irecv(connection.comm, 1, &bytes, &size, &tag, &none, &none, &request);
        }
        if (message == kWarmUp && write(control, "w", 1) != 1) {
            _exit(1);
        }
    }
    const Nanos::rep failed = now();
    connection.close();
    const Nanos::rep closed = now();
    if (write(control, &failed, sizeof(failed)) != sizeof(failed) ||
        write(control, &closed, sizeof(closed)) != sizeof(closed)) {
        _exit(1);
    }
    _exit(0);
}

void hear(const End& end, void* what, std::size_t size) {
    pollfd wait{end.control, POLLIN, 0};
    if (poll(&wait, 1, 1000 * static_cast<int>(kPatience.count())) != 1 ||
        recv(end.control, what, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
        die("an end is gone, or waits for ever");
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        die("usage: all_lost LIBRARY LINKS");
    }
    become_root(arguments);
    const int links = std::atoi(arguments[2]);
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    setenv("DEFT_LINK_TIMEOUT", (std::to_string(kLimit) + "s").c_str(), 1);
    const auto end = [&](bool sender) {
        return start_end([&, sender](int control) {
            run_end(arguments[1], static_cast<std::size_t>(links), sender, control);
        });
    };
    const End ends[2] = {end(true), end(false)};
    for (int link = 0; link < links; ++link) {
        if (!make_link(link, "400mbit", ends[0].pid, ends[1].pid)) {
            std::printf("skipped: no veth links for this user\n");
            kill(ends[0].pid, SIGKILL);
            kill(ends[1].pid, SIGKILL);
            return kSkipped;
        }
    }
    connect_ends(ends[0], ends[1]);
    char word = 0;
    hear(ends[0], &word, 1);
    hear(ends[1], &word, 1);
    const Nanos::rep began = now();
    for (int link = 0; link < links; ++link) {
        const bool good =
            lose_frames(ends[0].pid, link, 2, true) && lose_frames(ends[1].pid, link, 1, true);
        if (!good) {
            die("could not lose link %d", link);
        }
    }
    for (const End& end : ends) {
        Nanos::rep failed = 0;
        Nanos::rep closed = 0;
        hear(end, &failed, sizeof(failed));
        hear(end, &closed, sizeof(closed));
        const double seconds = static_cast<double>(failed - began) / 1e9;
        const double closing = static_cast<double>(closed - failed) / 1e9;
        std::printf("%s: its error after %.2f s, closed after %.2f s more\n",
                    &end == ends ? "sender" : "receiver", seconds, closing);
        if (seconds < kLimit - kGrace || seconds > kLimit + kGrace || closing > kCloseLimit) {
            die("not when it should be: DEFT_LINK_TIMEOUT is %d s", kLimit);
        }
    }
    for (const End& end : ends) {
        int status = 1;
        waitpid(end.pid, &status, 0);
        if (status != 0) {
            die("an end failed (%d)", status);
        }
    }
    return 0;
}
