// SPDX-License-Identifier: Apache-2.0
// What netperf is asked to do, and the checks of it that need no plugin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace netperf {

// A mistake of the user's: one line, exit status 2.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Options {
    std::string plugin;
    int abi = 0;  // 0: NCCL's choice
    std::vector<size_t> sizes = {8, 4 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20};
    std::vector<size_t> latency_sizes = {8, 1 << 10, 8 << 10, 64 << 10};
    std::vector<int> depths = {8};
    double seconds = 2;
    int repetitions = 5;
    int connections = 1;
    std::string namespaces[2];  // a name of ip-netns(8) or a path; empty: stay
    std::string interfaces;     // NCCL_SOCKET_IFNAME
    std::string sysfs[2];       // DEFT_SYSFS of each side; empty: as it is
    int cpus[2] = {-1, -1};     // of each side; -1: any
    int device = -1;            // -1: connection i uses device i modulo their number
    bool bidirectional = false;
    bool verify = false;
    uint64_t seed = 1;
    int sleep_us = 0;  // 0: spin
    int patience_s = 30;
    std::string json;
    bool bandwidth = true;
    bool latency = true;
    bool steady = false;
    bool idle = false;
    // Of --mode steady:
    uint64_t messages = 10000;  // on each connection
    double pace = 0;            // messages a second on each connection; 0: as fast as they go
    bool spin = false;          // no yield after a pass in which nothing moved
    bool time_calls = false;    // of steady: how long the plugin's calls take
    bool count_wrong = false;   // wrong bytes are counted, not an end
    double grace_s = 0;         // after one process's error the other may still say its own
};

// "8", "64K", "1M", "1G" -> bytes; throws UsageError that names the option.
size_t parse_size(const std::string& text, const std::string& option);
std::string size_text(size_t bytes);  // the reverse

// Reads the command line; throws UsageError. False if only help or the version was asked for and
// printed.
bool parse_command_line(int argc, char** argv, Options* options);

}  // namespace netperf
