// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/live_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/live_folder.h"
#include "base/log.h"

namespace deft {

bool LiveSocket::listen_in(const std::string& folder) {
    const std::string path = folder + "/" + std::to_string(::getpid()) + ".sock";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return false;
    }
    if (!is_private(folder, ::geteuid())) {
        errno = EPERM;
        return false;
    }
    UniqueFd made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::unlink(path.c_str());  // of a process that had this number and was killed
    if (!made || ::bind(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(made.get(), kMostViewers) != 0) {
        return false;
    }
    viewers_.reserve(kMostViewers);
    path_ = path;
    socket_ = std::move(made);
    return true;
}

void LiveSocket::open() noexcept {
    try {
        std::string tried;
        for (const std::string& folder : live_folders(::geteuid())) {
            if (listen_in(folder)) {
                return;
            }
            tried += (tried.empty() ? "" : "; ") + folder + ": " + std::strerror(errno);
        }
        DEFT_INFO("`deft top` cannot look at this process: %s", tried.c_str());
    } catch (...) {
        // No memory: nobody looks.
    }
}

bool LiveSocket::wanted(std::int64_t now_ns) noexcept {
    if (!socket_) {
        return false;
    }
    UniqueFd came(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (came && viewers_.size() < kMostViewers) {
        viewers_.push_back({std::move(came), {}, 0});  // has room: no allocation
    }
    std::erase_if(viewers_, [](Viewer& viewer) { return !write(viewer); });
    return std::any_of(viewers_.begin(), viewers_.end(), [now_ns](const Viewer& viewer) {
        return viewer.rest.empty() && now_ns >= viewer.due_ns;
    });
}

// False: it has gone away.
bool LiveSocket::write(Viewer& viewer) noexcept {
    char nothing = 0;
    if (viewer.rest.empty()) {
        const ssize_t got = ::recv(viewer.socket.get(), &nothing, 1, MSG_DONTWAIT);
        return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    }
    const ssize_t sent = ::send(viewer.socket.get(), viewer.rest.data(), viewer.rest.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    viewer.rest.erase(0, static_cast<std::size_t>(sent));
    return true;
}

void LiveSocket::give(const std::string& snapshot, std::int64_t now_ns) noexcept {
    try {
        for (Viewer& viewer : viewers_) {
            if (viewer.rest.empty() && now_ns >= viewer.due_ns) {
                viewer.rest = snapshot + "\n";
                viewer.due_ns = now_ns + kEvery;
                write(viewer);  // one that has gone is noticed at the next look
            }
        }
    } catch (...) {
        viewers_.clear();
    }
}

void LiveSocket::close() noexcept {
    // Children that were forked meanwhile hold all of them, too.
    for (const Viewer& viewer : viewers_) {
        ::shutdown(viewer.socket.get(), SHUT_RDWR);
    }
    viewers_.clear();
    if (socket_) {
        ::unlink(path_.c_str());
        ::shutdown(socket_.get(), SHUT_RDWR);
        socket_.reset();
    }
}

}  // namespace deft
