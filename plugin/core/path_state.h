// SPDX-License-Identifier: Apache-2.0
// The life of a path, as one transition function.
#pragma once

namespace deft::net {

enum class PathState {
    Up,       // carries chunks
    Suspect,  // silent for too long: its chunks are sent again elsewhere, it gets no new ones
    Down,     // lost; waits for the next attempt
    Probing   // an attempt to connect runs
};

enum class PathEvent {
    Connected,    // the peer has welcomed this path
    Progress,     // an acknowledgement came
    NoProgress,   // outstanding bytes and no acknowledgement for too long
    Lost,         // the connection broke, or the peer or the kernel says the link is gone
    Retry,        // back-off is over: an attempt starts
    ProbeFailed,  // the attempt failed
};

// The state after `event`; the same state where the event means nothing.
PathState next_state(PathState state, PathEvent event);

const char* to_string(PathState state);
const char* to_string(PathEvent event);

}  // namespace deft::net
