// SPDX-License-Identifier: Apache-2.0
// A receiver has all of a message and is not called again, as NCCL has nothing more for it; what it
// answered is lost with the way back of one link. The sender still has to learn of it.
//
// usage: last_word LIBRARY
// Exit status 77: namespaces are not allowed here.
#include <poll.h>

#include <vector>

#include "tests/system/plugin/two_hosts.h"

namespace {

constexpr std::size_t kSize = 5000;  // one chunk, which the first window of TCP's holds
constexpr int kWarmUp = 100;
constexpr int kTries = 30;  // the chunk may have gone over the other link
// If the sender knows sooner, the answer was not lost.
constexpr int kLost = 100;  // ms

std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 7 + at * 13 + (at >> 9)) & 0xff);
}

// Moves one message when told to; says 'p' when it is posted and 'd' when it is done, and makes no
// call while it waits.
void run_end(const char* library, bool sender, int control) {
    const Connection connection(library, sender, control);
    const auto* const net = connection.net;
    std::vector<std::byte> data(kSize);
    std::size_t message = 0;
    for (char order = 0; read(control, &order, 1) == 1 && order == 'o'; ++message) {
        for (std::size_t i = 0; i < kSize; ++i) {
            data[i] = sender ? pattern(message, i) : std::byte{0};
        }
        const auto start = Clock::now();
        void* request = nullptr;
        int tag = 0;
        int done = 0;
        bool posted = false;
        while (request == nullptr || done == 0) {
            void* bytes = data.data();
            std::size_t size = kSize;
            void* none = nullptr;
            int result = 0;
            if (request != nullptr) {
                result = net->test(request, &done, nullptr);
            } else if (sender) {
                result = net->isend(connection.comm, bytes, size, tag, nullptr, nullptr, &request);
            } else {
                result =
                    net->irecv(connection.comm, 1, &bytes, &size, &tag, &none, &none, &request);
            }
            if (result != 0 || Clock::now() - start > kPatience) {
                die("%s: message %zu: %s", sender ? "sender" : "receiver", message,
                    result != 0 ? "failed" : "nobody told it");
            }
            if (request != nullptr && !posted) {
                posted = true;
                (void)!write(control, "p", 1);
            }
        }
        for (std::size_t i = 0; i < kSize && !sender; ++i) {
            if (data[i] != pattern(message, i)) {
                die("message %zu differs at byte %zu", message, i);
            }
        }
        std::fill(data.begin(), data.end(), std::byte{0xEE});
        (void)!write(control, "d", 1);
    }
    connection.close();
    _exit(0);
}

void order(const End& end, char what) {
    if (write(end.control, &what, 1) != 1) {
        die("an end is gone");
    }
}

// False after so many milliseconds.
bool hear(const End& end, char what, int limit) {
    for (;;) {
        pollfd wait{end.control, POLLIN, 0};
        char word = 0;
        if (poll(&wait, 1, limit) == 0) {
            return false;
        }
        if (read(end.control, &word, 1) != 1) {
            die("an end is gone");
        }
        if (word == what) {
            return true;
        }
    }
}

void expect(const End& end, char what) {
    if (!hear(end, what, 2 * 1000 * static_cast<int>(kPatience.count()))) {
        die("no '%c'", what);
    }
}

// The receive is posted before anything is sent.
void begin(const End& a, const End& b) {
    order(b, 'o');
    expect(b, 'p');
    order(a, 'o');
}

void move(const End& a, const End& b, int messages) {
    for (int i = 0; i < messages; ++i) {
        begin(a, b);
        expect(a, 'd');
        expect(b, 'd');
    }
}

// True if the answer was lost, and the sender heard of it nevertheless.
bool lose_an_answer(const End& a, const End& b, int link) {
    move(a, b, kWarmUp);
    if (!lose_frames(b.pid, link, 1, true)) {
        die("could not lose what the receiver sends");
    }
    begin(a, b);
    expect(b, 'd');
    const auto start = Clock::now();
    const bool lost = !hear(a, 'd', kLost);
    if (lost) {
        expect(a, 'd');
        std::printf("the sender knew after %.0f ms\n",
                    std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    if (!lose_frames(b.pid, link, 1, false)) {
        die("could not end it");
    }
    return lost;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        die("usage: last_word LIBRARY");
    }
    become_root(arguments);
    unsetenv("DEFT_INTERFACES");
    setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    const End a = start_end([&](int control) { run_end(arguments[1], true, control); });
    const End b = start_end([&](int control) { run_end(arguments[1], false, control); });
    if (!make_link(0, "400mbit", a.pid, b.pid) || !make_link(1, "200mbit", a.pid, b.pid)) {
        std::printf("skipped: no veth links for this user\n");
        kill(a.pid, SIGKILL);
        kill(b.pid, SIGKILL);
        return kSkipped;
    }
    connect_ends(a, b);
    int tries = 1;
    while (!lose_an_answer(a, b, (tries - 1) % 2)) {
        if (++tries > kTries) {
            die("no answer was lost");
        }
    }
    move(a, b, kWarmUp);  // all is well again
    order(a, 'q');
    order(b, 'q');
    int status_a = 1;
    int status_b = 1;
    waitpid(a.pid, &status_a, 0);
    waitpid(b.pid, &status_b, 0);
    if (status_a != 0 || status_b != 0) {
        die("an end failed (%d, %d)", status_a, status_b);
    }
    std::printf("ok after %d\n", tries);
    return 0;
}
