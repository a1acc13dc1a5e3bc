// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/path_state.h"

namespace deft::net {

PathState next_state(PathState state, PathEvent event) {
    struct Transition {
        PathState from;
        PathEvent event;
        PathState to;
    };
    // Every other event leaves the path where it is.
    static constexpr Transition kTransitions[] = {
        {PathState::Up, PathEvent::NoProgress, PathState::Suspect},
        {PathState::Up, PathEvent::Lost, PathState::Down},
        {PathState::Suspect, PathEvent::Progress, PathState::Up},
        {PathState::Suspect, PathEvent::Lost, PathState::Down},
        {PathState::Down, PathEvent::Retry, PathState::Probing},
        {PathState::Probing, PathEvent::Connected, PathState::Up},
        {PathState::Probing, PathEvent::ProbeFailed, PathState::Down},
        {PathState::Probing, PathEvent::Lost, PathState::Down}};
    for (const Transition& each : kTransitions) {
        if (each.from == state && each.event == event) {
            return each.to;
        }
    }
    return state;
}

const char* to_string(PathState state) {
    switch (state) {
        case PathState::Up:
            return "up";
        case PathState::Suspect:
            return "suspect";
        case PathState::Down:
            return "down";
        case PathState::Probing:
            return "probing";
    }
    return "?";
}

const char* to_string(PathEvent event) {
    switch (event) {
        case PathEvent::Connected:
            return "connected";
        case PathEvent::Progress:
            return "progress";
        case PathEvent::NoProgress:
            return "no progress";
        case PathEvent::Lost:
            return "lost";
        case PathEvent::Retry:
            return "retry";
        case PathEvent::ProbeFailed:
            return "probe failed";
    }
    return "?";
}

}  // namespace deft::net
