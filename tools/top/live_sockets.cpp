// SPDX-License-Identifier: Apache-2.0
#include "tools/top/live_sockets.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/live_folder.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = 64u << 20;

// The folders in `parent` whose names begin so, and `below` them.
void add_folders(const char* parent, std::string_view begins, const char* below,
                 std::vector<std::string>& folders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(parent, error)) {
        if (entry.path().filename().string().starts_with(begins)) {
            folders.push_back((entry.path() / below).string());
        }
    }
}

}  // namespace

std::vector<std::string> LiveSockets::folders() const {
    std::vector<std::string> folders = live_folders(user_);
    // As the job's environment may have had it, whatever this one's is.
    folders.push_back(fmt::format("/run/user/{}/deft", user_));
    if (user_ == 0) {
        add_folders("/run/user", "", "deft", folders);
        add_folders("/tmp", "deft-", "", folders);
    }
    for (std::string& folder : folders) {
        folder.erase(folder.find_last_not_of('/') + 1);
    }
    std::sort(folders.begin(), folders.end());
    folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
    return folders;
}

void LiveSockets::look() {
    problems_.clear();
    for (const std::string& folder : folders()) {
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(folder, error)) {
            const std::string path = entry.path().string();
            if (entry.path().extension() == ".sock" && processes_.count(path) == 0) {
                connect(path);
            }
        }
        if (error && error != std::errc::no_such_file_or_directory) {
            problems_.push_back(folder + ": " + error.message());
        }
    }
}

void LiveSockets::connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    UniqueFd made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made || path.size() >= sizeof(address.sun_path)) {
        problems_.push_back(path + ": " + std::strerror(made ? ENAMETOOLONG : errno));
        return;
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
        processes_[path].socket = std::move(made);
    } else if (errno != ECONNREFUSED &&
               errno != ENOENT) {  // of a process that was killed, or ended
        problems_.push_back(path + ": " + std::strerror(errno));
    }
}

void LiveSockets::take(const std::string& path, Process& process, std::string_view more) {
    process.text += more;
    for (;;) {
        const auto end = process.text.find("\n\n");
        if (end == process.text.npos) {
            break;
        }
        const std::string snapshot = process.text.substr(0, end + 1);
        process.text.erase(0, end + 2);
        try {
            std::vector<ObserveFile> records;
            for (const std::string_view record : records_in(snapshot)) {
                records.push_back(parse_observe_file(path, std::string(record)));
            }
            process.records = std::move(records);
            ++process.snapshots;
        } catch (const std::runtime_error& error) {
            problems_.emplace_back(error.what());
            process.unreadable = true;
        }
    }
    process.unreadable = process.unreadable || process.text.size() > kLargest;
}

void LiveSockets::read(Clock::time_point until) {
    look();
    for (;;) {
        std::vector<pollfd> polled;
        std::vector<decltype(processes_)::iterator> asked;
        for (auto each = processes_.begin(); each != processes_.end(); ++each) {
            polled.push_back({each->second.socket.get(), POLLIN, 0});
            asked.push_back(each);
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        const int ready = left.count() <= 0 ? 0
                                            : ::poll(polled.data(), polled.size(),
                                                     static_cast<int>(left.count()));
        if (ready <= 0) {
            return;  // the time is over, or a signal has come
        }
        for (std::size_t i = 0; i < asked.size(); ++i) {
            if (polled[i].revents == 0) {
                continue;
            }
            char block[65536];
            const ssize_t got = ::recv(polled[i].fd, block, sizeof(block), 0);
            if (got > 0) {
                take(asked[i]->first, asked[i]->second, {block, static_cast<std::size_t>(got)});
            }
            const bool over = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
            if (over || asked[i]->second.unreadable) {
                processes_.erase(asked[i]);
            }
        }
    }
}

std::vector<ObserveFile> LiveSockets::records() const {
    std::vector<ObserveFile> all;
    for (const auto& [path, process] : processes_) {
        all.insert(all.end(), process.records.begin(), process.records.end());
    }
    std::stable_sort(all.begin(), all.end(), [](const ObserveFile& a, const ObserveFile& b) {
        return std::tie(a.job.id, a.rank) < std::tie(b.job.id, b.rank);
    });
    return all;
}

std::size_t LiveSockets::snapshots() const {
    std::size_t fewest = 0;
    for (const auto& [path, process] : processes_) {
        fewest = fewest == 0 ? process.snapshots : std::min(fewest, process.snapshots);
    }
    return fewest;
}

}  // namespace deft::tools
