// SPDX-License-Identifier: Apache-2.0
// How long a byte takes between two links, and how many pass: `deft probe`. Both sides.
#pragma once

#include <chrono>
#include <vector>

namespace deft::tools::doctor {

inline constexpr char kAskPings = 'P';
inline constexpr char kAskDrain = 'D';   // the side that asks sends
inline constexpr char kAskSource = 'S';  // the side that answers sends
inline constexpr std::chrono::milliseconds kLongestFlow{10000};

// One connection that was kept full.
struct Flow {
    double bytes_per_s = 0;  // that arrived
    double sent_again = 0;   // of the segments that were sent, 0 to 1
    int path_mtu = 0;        // that the sender's kernel knows; 0: it does not
};

// The side that asks, each on a connection of its own. False: the other side did not answer, as it
// has another release or its bytes are lost.
bool measure_round_trips(int fd, std::vector<double>& seconds);
bool measure_sending(int fd, std::chrono::milliseconds time, Flow& flow);
bool measure_receiving(int fd, std::chrono::milliseconds time, Flow& flow);

// The side that answers, once the question has been read.
void answer_pings(int fd);
void answer_drain(int fd);
void answer_source(int fd);

}  // namespace deft::tools::doctor
