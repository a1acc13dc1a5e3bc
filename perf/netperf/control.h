// SPDX-License-Identifier: Apache-2.0
// The two processes' own channel (a socket pair, so that it works across network namespaces):
// JSON values, one after the other, and barriers.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "base/unique_fd.h"

namespace netperf {

// The other process is gone or said that it failed.
class PeerGone : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Control {
public:
    explicit Control(deft::UniqueFd fd) : fd_(std::move(fd)) {}

    void send(const nlohmann::json& value);
    nlohmann::json receive();  // at most two hours
    nlohmann::json exchange(const nlohmann::json& ours) {
        send(ours);
        return receive();
    }
    void barrier() { exchange(nullptr); }

private:
    void take(char* to, size_t bytes);

    deft::UniqueFd fd_;
    std::string early_;  // came while something was sent
};

}  // namespace netperf
