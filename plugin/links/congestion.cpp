// SPDX-License-Identifier: Apache-2.0
#include "plugin/links/congestion.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

#include "topology/base/log.h"

namespace deft::net {
namespace {

bool set(int fd, const char* name) {
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                      static_cast<socklen_t>(std::strlen(name))) == 0;
}

}  // namespace

void Congestion::begin(int fd) {
    replaced_[0] = '\0';
    if (setting_ == "system") {
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
    std::array<char, kName> now{};
    socklen_t length = now.size() - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now.data(), &length) == 0 &&
        std::strncmp(now.data(), "bbr", 3) == 0 && set(fd, "cubic")) {
        replaced_ = now;
    }
}

void Congestion::connected(int fd) {
    if (replaced_[0] == '\0') {
        return;
    }
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_rtt > near_) {
        (void)set(fd, replaced_.data());
    }
}

}  // namespace deft::net
