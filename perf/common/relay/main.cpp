// SPDX-License-Identifier: Apache-2.0
// packet_relay: a link between two network namespaces that damages what it carries, as it is told.
//
//   packet_relay DEVICE NAMESPACE_A NAMESPACE_B [SEED [MBIT_PER_S]]
//
// Makes the TAP device DEVICE in both namespaces and passes Ethernet frames between them. Reads
// commands, one a line, from standard input and answers each with one line: "ok", "error: WHY", or
// JSON. It ends when its input does, and the devices with it.
//
//   ab|ba|both IMPAIRMENT...   of one direction or both; the words are those of impairments.h
//   carrier a|b|both on|off    what the host at this end sees
//   counters                   {"ab": {...}, "ba": {...}, "busy_s", "capacity_gbit_per_s"}
//
// The capacity is what passed, divided by the time the relay was not waiting: what it could carry
// at most. A figure near it is the relay's, not the link's.
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "perf/common/relay/direction.h"
#include "perf/common/relay/tap.h"

namespace relay {
namespace {

using json = nlohmann::json;

constexpr int kMostAtOnce = 64;            // frames read from one end before the other's turn
constexpr Nanoseconds kTogether = 50'000;  // due so soon counts as due: fewer wake-ups

Nanoseconds now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

json to_json(const Counters& counters, std::uint64_t refused) {
    return {{"received", counters.received},
            {"forwarded", counters.forwarded},
            {"forwarded_bytes", counters.forwarded_bytes},
            {"lost", counters.lost},
            {"acknowledgements_lost", counters.acknowledgements_lost},
            {"duplicated", counters.duplicated},
            {"held_back", counters.held_back},
            {"bit_errors", counters.bit_errors},
            {"silent_bit_errors", counters.silent_bit_errors},
            {"resets", counters.resets},
            {"forgotten", counters.forgotten},
            {"in_hole", counters.in_hole},
            {"in_black_hole", counters.in_black_hole},
            {"overflowed", counters.overflowed},
            {"refused", refused}};
}

class Relay {
public:
    Relay(const std::string& device, const std::string& a, const std::string& b, std::uint64_t seed)
        : ends_{Tap(a, device), Tap(b, device)},
          directions_{Direction(seed), Direction(seed + 0x5bd1e995)} {}

    Direction& direction(int from) { return directions_[from]; }

    void run() {
        while (!input_ended_) {
            wait();
            const Nanoseconds begin = now();
            for (int from = 0; from < 2; ++from) {
                collect(from);
            }
            for (int from = 0; from < 2; ++from) {
                deliver(from);
            }
            busy_ += now() - begin;
        }
    }

private:
    void wait() {
        pollfd waits[] = {
            {ends_[0].fd(), POLLIN, 0}, {ends_[1].fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        const Nanoseconds next = std::min(directions_[0].next(), directions_[1].next());
        timespec timeout{};
        if (next != Direction::kNever) {
            const Nanoseconds rest = std::max<Nanoseconds>(0, next - now());
            timeout = {static_cast<time_t>(rest / 1'000'000'000), rest % 1'000'000'000};
        }
        ppoll(waits, 3, next == Direction::kNever ? nullptr : &timeout, nullptr);
        if (waits[2].revents != 0) {
            read_commands();
        }
    }

    void collect(int from) {
        Frame frame;
        for (int i = 0; i < kMostAtOnce && ends_[from].read(frame); ++i) {
            if (ends_[from].carrier()) {
                directions_[from].offer(frame, now());
            }
        }
    }

    void deliver(int from) {
        Frame frame;
        while (directions_[from].take(now() + kTogether, frame)) {
            Tap& end = ends_[1 - from];
            if (!end.carrier() || !end.write(frame)) {
                ++refused_[from];
            }
        }
    }

    void read_commands() {
        char bytes[4096];
        const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (count <= 0) {
            input_ended_ = true;
            return;
        }
        input_.append(bytes, count);
        for (std::size_t end = 0; (end = input_.find('\n')) != std::string::npos;) {
            const std::string answer = obey(input_.substr(0, end));
            input_.erase(0, end + 1);
            std::printf("%s\n", answer.c_str());
            std::fflush(stdout);
        }
    }

    std::string obey(const std::string& line) {
        std::istringstream stream(line);
        std::vector<std::string> words;
        for (std::string word; stream >> word;) {
            words.push_back(word);
        }
        if (words.size() == 1 && words[0] == "counters") {
            return counters().dump();
        }
        if (words.size() == 3 && words[0] == "carrier") {
            return carrier(words[1], words[2]);
        }
        const bool ab = !words.empty() && (words[0] == "ab" || words[0] == "both");
        const bool ba = !words.empty() && (words[0] == "ba" || words[0] == "both");
        if (!ab && !ba) {
            return "error: " + line + ": begins with ab, ba, both, carrier or counters";
        }
        words.erase(words.begin());
        std::string problem;
        for (int from = 0; from < 2; ++from) {
            if (from == 0 ? ab : ba) {
                problem = impair(directions_[from].impairments, words);
            }
        }
        return problem.empty() ? "ok" : "error: " + problem;
    }

    std::string carrier(const std::string& where, const std::string& state) {
        const bool a = where == "a" || where == "both";
        const bool b = where == "b" || where == "both";
        if ((!a && !b) || (state != "on" && state != "off")) {
            return "error: carrier a|b|both on|off";
        }
        for (int end = 0; end < 2; ++end) {
            if (end == 0 ? a : b) {
                ends_[end].set_carrier(state == "on");
            }
        }
        return "ok";
    }

    json counters() const {
        const double bytes = static_cast<double>(directions_[0].counters().forwarded_bytes +
                                                 directions_[1].counters().forwarded_bytes);
        const double busy = static_cast<double>(busy_) * 1e-9;
        return {{"ab", to_json(directions_[0].counters(), refused_[0])},
                {"ba", to_json(directions_[1].counters(), refused_[1])},
                {"busy_s", busy},
                {"capacity_gbit_per_s", busy > 0 ? bytes * 8e-9 / busy : 0}};
    }

    Tap ends_[2];
    Direction directions_[2];
    std::uint64_t refused_[2] = {0, 0};
    Nanoseconds busy_ = 0;
    std::string input_;
    bool input_ended_ = false;
};

int run(int argc, char** argv) {
    if (argc < 4 || argc > 6) {
        std::fprintf(stderr,
                     "usage: packet_relay DEVICE NAMESPACE_A NAMESPACE_B [SEED [MBIT_PER_S]]\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1000UL);
    Relay relay(argv[1], argv[2], argv[3], argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1);
    if (argc > 5) {
        for (int from = 0; from < 2; ++from) {
            const std::string problem =
                impair(relay.direction(from).impairments, {"rate", argv[5]});
            if (!problem.empty()) {
                std::fprintf(stderr, "packet_relay: %s\n", problem.c_str());
                return 2;
            }
        }
    }
    std::printf("ready\n");
    std::fflush(stdout);
    relay.run();
    return 0;
}

}  // namespace
}  // namespace relay

int main(int argc, char** argv) {
    try {
        return relay::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "packet_relay: %s\n", error.what());
        return 1;
    }
}
