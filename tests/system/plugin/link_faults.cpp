// SPDX-License-Identifier: Apache-2.0
// Two processes, each in a network namespace of its own, joined by two shaped veth links of unequal
// rate; the product is loaded with dlopen and moves messages of random sizes while a link is set
// down, deleted and made again, or swallows everything. Every byte is compared.
//
// usage: link_faults LIBRARY FAULT     FAULT: none, down, delete, blackhole
// Exit status 77: namespaces are not allowed here.
#include <poll.h>

#include <deque>
#include <fstream>
#include <random>
#include <vector>

#include "tests/system/plugin/two_hosts.h"

namespace {

constexpr std::size_t kMessages = 900;
constexpr std::size_t kLargest = 1 << 20;
constexpr std::size_t kDepth = 4;
constexpr std::size_t kFaultAt = 150;  // messages received when the fault comes

std::size_t size_of(std::size_t message) {
    std::mt19937_64 random(message * 31 + 5);
    return message % 7 == 0 ? random() % 3000 : random() % kLargest;
}

std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 7 + at * 13 + (at >> 9)) & 0xff);
}

// One end: drives the table as NCCL's proxy does. Reports each received message on `control`.
class Job {
public:
    Job(const char* library, bool sender, int control)
        : connection_(library, sender, control), sender_(sender), control_(control) {}

    void run() {
        while (ended_ < kMessages) {
            if (Clock::now() - last_ > kPatience) {
                die("%s: nothing moved, %zu of %zu done", name(), ended_, kMessages);
            }
            if (begun_ < kMessages && flights_.size() < kDepth) {
                begin();
            }
            if (!end_oldest()) {
                std::this_thread::yield();
            }
        }
        std::printf("%s: %zu messages, longest stall %.0f ms\n", name(), ended_,
                    std::chrono::duration<double, std::milli>(stall_).count());
        std::fflush(stdout);
        // The other end still needs this one until it has its last acknowledgement: leave together.
        char byte = 'd';
        (void)!write(control_, &byte, 1);
        while (read(control_, &byte, 1) == 1 && byte != 'q') {
        }
        connection_.close();
    }

private:
    struct Flight {
        void* request;
        std::vector<std::byte> data;
    };

    const char* name() const { return sender_ ? "sender" : "receiver"; }

    void begin() {
        const auto* const net = connection_.net;
        Flight flight{nullptr, std::vector<std::byte>(sender_ ? size_of(begun_) : kLargest)};
        void* data = flight.data.data();
        std::size_t size = flight.data.size();
        void* none = nullptr;
        int tag = 0;
        int result = 0;
        if (sender_) {
            for (std::size_t i = 0; i < size; ++i) {
                flight.data[i] = pattern(begun_, i);
            }
            result =
                net->isend(connection_.comm, data, size, tag, nullptr, nullptr, &flight.request);
        } else {
            result =
                net->irecv(connection_.comm, 1, &data, &size, &tag, &none, &none, &flight.request);
        }
        if (result != 0) {
            die("%s failed: %d", sender_ ? "isend" : "irecv", result);
        }
        if (flight.request != nullptr) {
            flights_.push_back(std::move(flight));
            ++begun_;
        }
    }

    // False: it is still under way.
    bool end_oldest() {
        int done = 0;
        int size = 0;
        if (!flights_.empty() &&
            connection_.net->test(flights_.front().request, &done, &size) != 0) {
            die("%s: test failed", name());
        }
        if (done == 0) {
            return false;
        }
        if (!sender_) {
            check(static_cast<std::size_t>(size));
            (void)!write(control_, "m", 1);
        }
        // The buffer is NCCL's again: what is written to it now must not go out any more.
        std::memset(flights_.front().data.data(), 0xEE, flights_.front().data.size());
        flights_.pop_front();
        ++ended_;
        stall_ = std::max(stall_, Clock::now() - last_);
        last_ = Clock::now();
        return true;
    }

    void check(std::size_t size) const {
        if (size != size_of(ended_)) {
            die("message %zu: %zu bytes instead of %zu", ended_, size, size_of(ended_));
        }
        for (std::size_t i = 0; i < size; ++i) {
            if (flights_.front().data[i] != pattern(ended_, i)) {
                die("message %zu differs at byte %zu", ended_, i);
            }
        }
    }

    const Connection connection_;
    const bool sender_;
    const int control_;
    std::deque<Flight> flights_;
    std::size_t begun_ = 0;
    std::size_t ended_ = 0;
    Clock::time_point last_ = Clock::now();
    Clock::duration stall_ = Clock::duration::zero();
};

[[noreturn]] void run_end(const char* library, bool sender, int control) {
    Job(library, sender, control).run();
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
