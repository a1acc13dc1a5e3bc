// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/path_state.h"

namespace deft::net {

PathState next_state(PathState state, PathEvent event) {
    switch (state) {
        case PathState::Up:
            switch (event) {
                case PathEvent::NoProgress:
                    return PathState::Suspect;
                case PathEvent::Lost:
                    return PathState::Down;
                case PathEvent::Connected:
                case PathEvent::Progress:
                case PathEvent::Retry:
                case PathEvent::ProbeFailed:
                    return state;
            }
            return state;
        case PathState::Suspect:
            switch (event) {
                case PathEvent::Progress:
                    return PathState::Up;
                case PathEvent::Lost:
                    return PathState::Down;
                case PathEvent::Connected:
                case PathEvent::NoProgress:
                case PathEvent::Retry:
                case PathEvent::ProbeFailed:
                    return state;
            }
            return state;
        case PathState::Down:
            return event == PathEvent::Retry ? PathState::Probing : state;
        case PathState::Probing:
            switch (event) {
                case PathEvent::Connected:
                    return PathState::Up;
                case PathEvent::ProbeFailed:
                case PathEvent::Lost:
                    return PathState::Down;
                case PathEvent::Progress:
                case PathEvent::NoProgress:
                case PathEvent::Retry:
                    return state;
            }
            return state;
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
