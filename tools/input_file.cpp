// SPDX-License-Identifier: Apache-2.0
#include "tools/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/unique_fd.h"

namespace deft::tools {
namespace {

constexpr int kPatience = 60000;  // milliseconds

std::string larger_than(std::size_t limit) {
    return fmt::format("larger than {} MiB; is it the right file?", limit >> 20);
}

// What cannot be an input, or an empty string.
std::string unfit(int fd, std::size_t limit) {
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) {
        return std::strerror(errno);
    }
    if (S_ISDIR(status.st_mode)) {
        return "a folder; name a file in it";
    }
    if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
        return "neither a file nor a pipe";
    }
    return S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) > limit
               ? larger_than(limit)
               : "";
}

}  // namespace

bool read_input(const std::string& path, std::size_t limit, std::string& bytes,
                std::string& problem) {
    // Opened without waiting for a writer of a pipe that may never come.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    problem = unfit(fd.get(), limit);
    std::string block(1 << 18, '\0');
    while (problem.empty()) {
        const ssize_t got = ::read(fd.get(), block.data(), block.size());
        if (got == 0) {
            return true;
        }
        if (got > 0) {
            bytes.append(block, 0, static_cast<std::size_t>(got));
            problem = bytes.size() > limit ? larger_than(limit) : "";
        } else if (errno == EAGAIN) {
            pollfd waiting{fd.get(), POLLIN, 0};
            if (::poll(&waiting, 1, kPatience) == 0) {
                problem = "a pipe into which nobody has written for a minute";
            }
        } else if (errno != EINTR) {
            problem = std::strerror(errno);
        }
    }
    return false;
}

}  // namespace deft::tools
