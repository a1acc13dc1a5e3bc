// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/congestion.h"

#include <linux/tcp.h>  // tcp_info of today, which glibc's lags behind
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>

#include "base/log.h"

namespace deft::net {
namespace {

bool set(int fd, const char* name) {
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                      static_cast<socklen_t>(std::strlen(name))) == 0;
}

// The indices of lossy links, 0 where there is none yet. With more of them than this array holds,
// each path of the rest finds out for itself.
constinit std::array<std::atomic<int>, 64> lossy_links{};

bool known_lossy(int link) {
    for (const auto& each : lossy_links) {
        if (link != 0 && each.load(std::memory_order_relaxed) == link) {
            return true;
        }
    }
    return false;
}

void remember(int link) {
    if (link == 0 || known_lossy(link)) {
        return;
    }
    for (auto& each : lossy_links) {
        int none = 0;
        if (each.compare_exchange_strong(none, link, std::memory_order_relaxed)) {
            return;
        }
    }
}

bool read_info(int fd, tcp_info& info) {
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

LossRate::Counts counts_of(const tcp_info& info) {
    // What came twice had only been late; an old kernel does not count that.
    return {info.tcpi_segs_out, info.tcpi_total_retrans - info.tcpi_dsack_dups};
}

}  // namespace

bool LossRate::lossy(Counts now) {
    constexpr std::uint32_t kWindow = 1000;  // segments, of which one lost is too many
    constexpr std::int32_t kPlenty = 20;
    const std::uint32_t sent = now.sent - begin_.sent;
    // Signed: a window in which late answers arrived can end with fewer losses than it began with.
    const auto lost = static_cast<std::int32_t>(now.lost - begin_.lost);
    if (sent < kWindow && lost < kPlenty) {
        return false;
    }
    const bool lossy = std::int64_t{lost} * kWindow >= sent;
    const bool twice = lossy && last_was_lossy_;
    begin_ = now;
    last_was_lossy_ = lossy;
    return twice;
}

void LossWatch::give_back(int fd) {
    (void)set(fd, replaced_.data());
    replaced_[0] = '\0';
}

void LossWatch::look(int fd) {
    tcp_info info{};
    if (!over() && read_info(fd, info) && rate_.lossy(counts_of(info))) {
        give_back(fd);
        remember(link_);
    }
}

void Congestion::begin(int fd) {
    watch_ = LossWatch();
    if (setting_ == "system" || (setting_ == "auto" && known_lossy(link_))) {
        return;
    }
    if (setting_ != "auto") {
        if (!set(fd, setting_.c_str())) {
            DEFT_WARN_ONCE(
                "DEFT_TCP_CONGESTION: this host does not offer '%s' here (see "
                "/proc/sys/net/ipv4/tcp_allowed_congestion_control): its default is used",
                setting_.c_str());
        }
        return;
    }
    std::array<char, LossWatch::kName> now{};
    socklen_t length = now.size() - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now.data(), &length) == 0 &&
        std::strncmp(now.data(), "bbr", 3) == 0 && set(fd, "cubic")) {
        watch_.replaced_ = now;
        watch_.link_ = link_;
    }
}

LossWatch Congestion::connected(int fd) {
    if (!watch_.over()) {
        tcp_info info{};
        if (!read_info(fd, info) || info.tcpi_rtt > near_) {
            watch_.give_back(fd);
        }
    }
    return std::exchange(watch_, LossWatch());
}

}  // namespace deft::net
