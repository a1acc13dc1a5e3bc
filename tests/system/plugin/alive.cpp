// SPDX-License-Identifier: Apache-2.0
// What is an outage and what is an end, between two real hosts (docs/alive.md).
//
// usage: alive LIBRARY CASE
//   hole, hole-alone     a link whose far end takes no frames of full size, next to another, or
//                        alone
//   hole-heals           alone, until the far end takes them again
//   flap1, flap2         the carriers of one or two links: down 1 s, up 0.1 s, down 7 s
//   dark1, dark2         no carrier for twice DEFT_LINK_TIMEOUT
//   silent1, silent2     every frame is lost for 12 s
//   killed-sender        SIGKILL, while its peer only waits for messages
//   killed-receiver      SIGKILL, while its peer sends
// Exit status 77: namespaces are not allowed here.
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <fstream>

#include "tests/system/plugin/two_hosts.h"

namespace {

constexpr std::size_t kSize = 1 << 20;
constexpr std::size_t kDepth = 4;
constexpr int kReport = 8;   // messages for one 'm'
constexpr int kWarmUp = 10;  // 'm's before the fault
constexpr int kEnough = 30;  // after it

std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 7 + at * 13 + (at >> 9)) & 0xff);
}

void say(int control, char word) {
    if (write(control, &word, 1) != 1) {
        _exit(1);
    }
}

// Frames leave as they are on the wire, not as what a NIC would still have to cut.
void cut_frames_here(const char* name) {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (const unsigned what : {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO}) {
        ethtool_value off{what, 0};
        ifreq request{};
        std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
        request.ifr_data = reinterpret_cast<char*>(&off);
        if (ioctl(fd, SIOCETHTOOL, &request) != 0) {
            die("ethtool on %s: %s", name, std::strerror(errno));
        }
    }
    close(fd);
}

// One side of the job, which moves messages until it is told to stop or fails.
class Job {
public:
    Job(const char* library, std::size_t links, bool sender, int control)
        : connection_(library, sender, control, links), sender_(sender), control_(control) {}

    // Says 'm' now and then, until it is told to stop ('q') or fails ('e'). `rests`: a sender that
    // stops after the warm-up and makes no call any more.
    void run(bool rests) {
        int result = 0;
        for (std::size_t message = 0; result == 0; ++message) {
            result = finish(message);
            if (result == 0) {
                result = post(message);
            }
            if (result != 0) {
                break;
            }
            if (message % kReport == 0 && message >= kDepth) {
                say(control_, 'm');
            }
            while (rests && message == kReport * kWarmUp + kDepth) {
                pause();
            }
        }
        say(control_, 'e');
        connection_.close();
    }

private:
    void stop_if_told() const {
        pollfd told{control_, POLLIN, 0};
        if (poll(&told, 1, 0) == 1) {
            _exit(0);
        }
    }

    // The message that had this one's place.
    int finish(std::size_t message) {
        void*& request = requests_[message % kDepth];
        if (request == nullptr) {
            return 0;
        }
        for (int done = 0; done == 0;) {
            if (const int result = connection_.net->test(request, &done, nullptr); result != 0) {
                return result;
            }
            if (done == 0) {
                stop_if_told();
            }
        }
        request = nullptr;
        const std::vector<std::byte>& bytes = data_[message % kDepth];
        for (std::size_t i = 0; !sender_ && i < kSize; i += 97) {
            if (bytes[i] != pattern(message - kDepth, i)) {
                die("message %zu differs at byte %zu", message - kDepth, i);
            }
        }
        return 0;
    }

    int post(std::size_t message) {
        void*& request = requests_[message % kDepth];
        std::vector<std::byte>& bytes = data_[message % kDepth];
        for (std::size_t i = 0; i < kSize; ++i) {
            bytes[i] = sender_ ? pattern(message, i) : std::byte{0};
        }
        const auto* const net = connection_.net;
        int tag = 0;
        void* none = nullptr;
        void* buffer = bytes.data();
        std::size_t size = kSize;
        int result = 0;
        while (request == nullptr && result == 0) {
            result =
                sender_
                    ? net->isend(connection_.comm, buffer, size, tag, nullptr, nullptr, &request)
                    : net->irecv(connection_.comm, 1, &buffer, &size, &tag, &none, &none, &request);
            if (request == nullptr) {
                stop_if_told();
            }
        }
        return result;
    }

    const Connection connection_;
    const bool sender_;
    const int control_;
    std::vector<std::vector<std::byte>> data_{kDepth, std::vector<std::byte>(kSize)};
    void* requests_[kDepth] = {};
};

// The next word of an end; 0 if there is none for so long.
char hear(const End& end, std::chrono::milliseconds limit) {
    pollfd wait{end.control, POLLIN, 0};
    char word = 0;
    if (poll(&wait, 1, static_cast<int>(limit.count())) == 0) {
        return 0;
    }
    return read(end.control, &word, 1) == 1 ? word : 'x';
}

// Throws away what was said before now.
void drain(const End& end) {
    for (char word = 'm'; word != 0;) {
        word = hear(end, std::chrono::milliseconds(0));
        if (word != 0 && word != 'm') {
            die("it failed during the fault");
        }
    }
}

void expect_progress(const End& end, int words, const char* what) {
    for (int i = 0; i < words; ++i) {
        const char word = hear(end, kPatience);
        if (word != 'm') {
            die("%s: %s", what, word == 0 ? "nothing moves" : "it failed");
        }
    }
}

double expect_failure(const End& end, const char* who, std::chrono::seconds limit) {
    const auto start = Clock::now();
    while (Clock::now() - start < limit) {
        const char word = hear(end, limit);
        if (word == 'e') {
            const double took = std::chrono::duration<double>(Clock::now() - start).count();
            std::printf("%s: its error after %.2f s\n", who, took);
            return took;
        }
        if (word != 'm') {
            break;
        }
    }
    die("%s: no error", who);
}

void set_carriers(const End& end, std::size_t links, bool up) {
    for (std::size_t link = 0; link < links; ++link) {
        if (!run(in_namespace(end.pid,
                              "ip link set eth" + std::to_string(link) + (up ? " up" : " down")))) {
            die("could not set link %zu", link);
        }
    }
}

void lose_all(const End ends[2], std::size_t links, bool on) {
    for (std::size_t link = 0; link < links; ++link) {
        if (!lose_frames(ends[0].pid, static_cast<int>(link), 2, on) ||
            !lose_frames(ends[1].pid, static_cast<int>(link), 1, on)) {
            die("could not silence link %zu", link);
        }
    }
}

// Frames of up to 9000 bytes leave, the far end takes 1500, and nobody tells TCP.
void dig_hole(const End ends[2], int link) {
    const std::string name = "eth" + std::to_string(link);
    const std::string net = "10.77." + std::to_string(link) + ".0/24";
    if (!run(in_namespace(ends[0].pid, "ip link set " + name + " mtu 9000")) ||
        !run(in_namespace(ends[1].pid, "ip route change " + net + " dev " + name + " src 10.77." +
                                           std::to_string(link) + ".2 advmss 8960"))) {
        die("could not dig a hole into link %d", link);
    }
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t found = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        ++found;
    }
    return found;
}

using Seconds = std::chrono::seconds;

void next_to_a_hole(const End ends[2], std::size_t /*links*/) {
    expect_progress(ends[1], kEnough, "next to a hole");
    // Twice: a connection that only answered small packets.
    std::this_thread::sleep_for(Seconds(8));
    expect_progress(ends[1], kEnough, "next to a hole");
}

void over_a_hole(const End ends[2], std::size_t /*links*/) {
    expect_progress(ends[1], kEnough, "over a hole alone");
}

constexpr const char* kSmallPackets = "1[01][0-9]{2}";

// Whether the kernel cuts what a connection of this host sends into packets of so many bytes.
bool has_packets_of(const End& end, const std::string& bytes) {
    return run(
        in_namespace(end.pid, "ss -tinH state established | grep -qE ' mss:" + bytes + " '"));
}

// The switch is set right, which no carrier tells of. The job goes on all the time.
void heal(const End ends[2], std::size_t /*links*/) {
    expect_progress(ends[1], kEnough, "over a hole alone");
    if (!has_packets_of(ends[0], kSmallPackets)) {
        die("packets of full size get over the hole");
    }
    if (!run(in_namespace(ends[1].pid, "ip link set eth0 mtu 9000"))) {
        die("could not heal the hole");
    }
    const auto start = Clock::now();
    while (!run("grep -q 'full-size packets pass again' \"$DEFT_LOG_FILE\"")) {
        if (Clock::now() - start > 2 * kPatience) {
            die("the path still keeps its packets small");
        }
        expect_progress(ends[1], 1, "over a healed hole");
    }
    expect_progress(ends[1], kEnough, "over a path made anew");
    if (!has_packets_of(ends[0], "8[0-9]{3}") || has_packets_of(ends[0], kSmallPackets)) {
        die("the log says that packets are full, and they are not");
    }
}

void flap(const End ends[2], std::size_t links) {
    for (int round = 0; round < 2; ++round) {
        set_carriers(ends[1], links, false);
        std::this_thread::sleep_for(Seconds(1));
        set_carriers(ends[1], links, true);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        set_carriers(ends[1], links, false);
        std::this_thread::sleep_for(Seconds(7));
        drain(ends[1]);
        set_carriers(ends[1], links, true);
        expect_progress(ends[1], kEnough, "after a flap");
    }
}

void go_dark(const End ends[2], std::size_t links) {
    set_carriers(ends[1], links, false);
    std::this_thread::sleep_for(Seconds(9));
    drain(ends[1]);
    set_carriers(ends[1], links, true);
    expect_progress(ends[1], kEnough, "after the dark");
}

void fall_silent(const End ends[2], std::size_t links) {
    lose_all(ends, links, true);
    std::this_thread::sleep_for(Seconds(12));
    drain(ends[1]);
    lose_all(ends, links, false);
    expect_progress(ends[1], kEnough, "after an outage");
}

// The other end's error comes long before any timeout; how long it took is printed.
void kill_sender(const End ends[2], std::size_t /*links*/) {
    std::this_thread::sleep_for(Seconds(1));
    kill(ends[0].pid, SIGKILL);
    (void)expect_failure(ends[1], "receiver", Seconds(5));
}

void kill_receiver(const End ends[2], std::size_t /*links*/) {
    std::this_thread::sleep_for(Seconds(1));
    kill(ends[1].pid, SIGKILL);
    (void)expect_failure(ends[0], "sender", Seconds(5));
}

void stop(const End ends[2]) {
    for (int i = 0; i < 2; ++i) {
        kill(ends[i].pid, SIGKILL);
    }
    for (int i = 0; i < 2; ++i) {
        waitpid(ends[i].pid, nullptr, 0);
    }
}

struct Case {
    const char* name;
    std::size_t links;
    const char* timeout;  // NULL: the default
    void (*fault)(const End ends[2], std::size_t links);
};

const Case kCases[] = {{"hole", 2, nullptr, next_to_a_hole},
                       {"hole-alone", 1, nullptr, over_a_hole},
                       {"hole-heals", 1, nullptr, heal},
                       {"flap1", 1, nullptr, flap},
                       {"flap2", 2, nullptr, flap},
                       {"dark1", 1, "4s", go_dark},
                       {"dark2", 2, "4s", go_dark},
                       {"silent1", 1, nullptr, fall_silent},
                       {"silent2", 2, nullptr, fall_silent},
                       {"killed-sender", 2, nullptr, kill_sender},
                       {"killed-receiver", 2, nullptr, kill_receiver}};

}  // namespace

int main(int arguments_count, char** arguments) {
    const Case* chosen = nullptr;
    for (const Case& each : kCases) {
        chosen = arguments_count == 3 && std::strcmp(arguments[2], each.name) == 0 ? &each : chosen;
    }
    if (chosen == nullptr) {
        die("usage: alive LIBRARY CASE");
    }
    become_root(arguments);
    const std::string what = chosen->name;
    const std::size_t links = chosen->links;
    const std::string log = "/tmp/deft-alive-" + std::to_string(getpid()) + ".log";
    setenv("DEFT_LOG", "info", 1);
    setenv("DEFT_LOG_FILE", log.c_str(), 1);
    unsetenv("DEFT_INTERFACES");
    unsetenv("DEFT_LINK_TIMEOUT");
    setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    if (chosen->timeout != nullptr) {
        setenv("DEFT_LINK_TIMEOUT", chosen->timeout, 1);
    }
    const bool hole = what.starts_with("hole");
    const auto end = [&](bool sender) {
        return start_end([&, sender](int control) {
            if (hole && sender) {
                cut_frames_here(("eth" + std::to_string(links - 1)).c_str());
            }
            Job(arguments[1], links, sender, control).run(sender && what == "killed-sender");
            _exit(0);
        });
    };
    const End ends[2] = {end(true), end(false)};
    for (std::size_t link = 0; link < links; ++link) {
        if (!make_link(static_cast<int>(link), "400mbit", ends[0].pid, ends[1].pid)) {
            std::printf("skipped: no veth links for this user\n");
            stop(ends);
            return kSkipped;
        }
    }
    if (hole) {
        dig_hole(ends, static_cast<int>(links) - 1);
    }
    connect_ends(ends[0], ends[1]);
    if (!hole || links > 1) {
        expect_progress(ends[1], kWarmUp, "before the fault");
    }
    chosen->fault(ends, links);
    stop(ends);
    std::ifstream file(log);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    unlink(log.c_str());
    const std::size_t holes = count(text, "full-size ones do not arrive");
    if (hole ? holes != 1
             : text.find("WARN connection") != std::string::npos && !what.starts_with("killed")) {
        die("%zu warnings of holes\n%s", holes, text.c_str());
    }
    std::printf("%s: ok\n", chosen->name);
    return 0;
}
