// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/socket_faults.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "softdev/net/logger.h"

namespace softdev::net {
namespace {

// Small, so that a rate is kept in small steps and a fault comes where it is wanted.
constexpr size_t kStep = 32 * 1024;

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool read_number(const std::string& text, uint64_t* number) {
    char* end = nullptr;
    *number = std::strtoull(text.c_str(), &end, 10);
    return !text.empty() && text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

// "BYTES", "asked" or "asked+BYTES".
bool read_place(const std::string& text, bool* asked, uint64_t* bytes) {
    constexpr std::string_view kAsked = "asked";
    *asked = text.starts_with(kAsked);
    if (!*asked) {
        return read_number(text, bytes);
    }
    *bytes = 0;
    return text == kAsked ||
           (text[kAsked.size()] == '+' && read_number(text.substr(kAsked.size() + 1), bytes));
}

}  // namespace

SocketFaults& SocketFaults::process() {
    static auto* const faults = new SocketFaults;  // never destroyed: threads may outlive exit()
    return *faults;
}

SocketFaults::SocketFaults() {
    if (const char* rate = std::getenv("SOFTNET_SOCKET_RATE")) {
        uint64_t bytes = 0;
        if (!read_number(rate, &bytes) || bytes == 0) {
            wrong_ = std::string("SOFTNET_SOCKET_RATE=") + rate;
        }
        nanoseconds_per_byte_ = bytes > 0 ? 1e9 / static_cast<double>(bytes) : 0;
    }
    if (const char* fault = std::getenv("SOFTNET_SOCKET_FAULT")) {
        const std::string text(fault);
        const size_t first = text.find(':');
        const size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
        const std::string what = text.substr(0, first);
        const std::string at =
            second == text.npos ? "" : text.substr(first + 1, second - first - 1);
        wanted_ = what == "hold" ? State::Held : what == "fail" ? State::Broken : State::None;
        at_init_ = at == "init" && wanted_ == State::Held;
        file_ = second == text.npos ? "" : text.substr(second + 1);
        ask_ = file_ + ".asked";
        if (wanted_ == State::None || (!at_init_ && !read_place(at, &when_asked_, &at_)) ||
            file_.empty()) {
            wrong_ = "SOFTNET_SOCKET_FAULT=" + text;
        }
    }
    active_ = nanoseconds_per_byte_ > 0 || wanted_ != State::None;
}

bool SocketFaults::init() {
    if (!wrong_.empty()) {
        SOFTNET_WARN("NET/Socket : %s cannot be read", wrong_.c_str());
        return false;
    }
    if (at_init_) {
        happen();
        for (;;) {
            ::pause();
        }
    }
    return true;
}

void SocketFaults::happen() {
    if (state_.exchange(wanted_) == State::None) {
        const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            ::close(fd);
        }
    }
}

size_t SocketFaults::allowance() {
    if (!active_) {
        return SIZE_MAX;
    }
    return now_ns() >= next_ns_.load(std::memory_order_relaxed) ? kStep : 0;
}

bool SocketFaults::asked() {
    if (!asked_.load(std::memory_order_relaxed) && ::access(ask_.c_str(), F_OK) == 0) {
        asked_.store(true, std::memory_order_relaxed);
    }
    return asked_.load(std::memory_order_relaxed);
}

void SocketFaults::sent(size_t bytes) {
    if (!active_) {
        return;
    }
    if (nanoseconds_per_byte_ > 0) {
        const auto takes = static_cast<int64_t>(nanoseconds_per_byte_ * static_cast<double>(bytes));
        const int64_t now = now_ns();
        int64_t next = next_ns_.load();
        while (!next_ns_.compare_exchange_weak(next, std::max(next, now) + takes)) {
        }
    }
    const bool counts = wanted_ != State::None && !at_init_ && (!when_asked_ || asked());
    if (counts && sent_.fetch_add(bytes) + bytes >= at_) {
        happen();
    }
}

}  // namespace softdev::net
