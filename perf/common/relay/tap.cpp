// SPDX-License-Identifier: Apache-2.0
#include "perf/common/relay/tap.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace relay {
namespace {

constexpr std::size_t kLargestFrame = 65536;
constexpr unsigned kNominalMbit = 10000;  // as a veth says of itself

[[noreturn]] void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

void enter(int fd, const std::string& name) {
    if (setns(fd, CLONE_NEWNET) != 0) {
        fail("namespace " + name + ": cannot be entered");
    }
}

// A TAP device says 10 Mbit/s of itself, which makes it a management network in many eyes. An older
// kernel does not let it be changed; the links' names are given then anyway.
void set_nominal_rate(const std::string& name) {
    const deft::UniqueFd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ethtool_cmd settings{};
    settings.cmd = ETHTOOL_GSET;
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&settings);
    if (ioctl(socket_fd.get(), SIOCETHTOOL, &request) == 0) {
        settings.cmd = ETHTOOL_SSET;
        ethtool_cmd_speed_set(&settings, kNominalMbit);
        settings.duplex = DUPLEX_FULL;
        [[maybe_unused]] const int ignored = ioctl(socket_fd.get(), SIOCETHTOOL, &request);
    }
}

}  // namespace

Tap::Tap(const std::string& namespace_path, const std::string& name) {
    if (name.empty() || name.size() >= IFNAMSIZ) {
        throw std::runtime_error("device name '" + name + "': 1 to 15 characters are needed");
    }
    const deft::UniqueFd own(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    const deft::UniqueFd wanted(open(namespace_path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!own || !wanted) {
        fail("namespace " + namespace_path);
    }
    enter(wanted.get(), namespace_path);
    // The device is made in the namespace that the file was opened in.
    fd_.reset(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!fd_) {
        fail("/dev/net/tun");
    }
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    if (ioctl(fd_.get(), TUNSETIFF, &request) != 0) {
        fail("device " + name);
    }
    set_nominal_rate(name);
    enter(own.get(), "of its own");
}

void Tap::set_carrier(bool on) {
    int value = on ? 1 : 0;
    if (ioctl(fd_.get(), TUNSETCARRIER, &value) != 0) {
        fail("carrier");
    }
    carrier_ = on;
}

bool Tap::read(Frame& frame) {
    frame.resize(kLargestFrame);
    const ssize_t bytes = ::read(fd_.get(), frame.data(), frame.size());
    if (bytes <= 0) {
        if (bytes < 0 && errno != EAGAIN && errno != EINTR && errno != EIO) {
            fail("reading a frame");
        }
        return false;
    }
    frame.resize(bytes);
    return true;
}

bool Tap::write(const Frame& frame) {
    return ::write(fd_.get(), frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
}

}  // namespace relay
