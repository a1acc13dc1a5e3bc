// SPDX-License-Identifier: Apache-2.0
// Sockets with a deadline, for the two sides of `deft doctor --peer`.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "base/unique_fd.h"

namespace deft::tools::doctor {

using Deadline = std::chrono::steady_clock::time_point;
Deadline after(std::chrono::milliseconds time);

// Non-blocking. Not open: `error` says why.
UniqueFd connect_to(const sockaddr* address, socklen_t length, const std::string& device,
                    const sockaddr* from, socklen_t from_length, Deadline deadline,
                    std::string& error);

// Both of all bytes; false: the deadline, an error or the end came first.
bool send_all(int fd, const void* bytes, std::size_t size, Deadline deadline);
bool receive_all(int fd, void* bytes, std::size_t size, Deadline deadline);
// Until the end, at most `most` bytes.
std::string receive_text(int fd, std::size_t most, Deadline deadline);

inline constexpr char kAskInfo = 'I';
inline constexpr char kAskEcho = 'E';
inline constexpr std::size_t kSmall = 64;
inline constexpr std::size_t kFull = 65536;

}  // namespace deft::tools::doctor
