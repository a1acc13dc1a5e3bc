// SPDX-License-Identifier: Apache-2.0
#include "tools/top/live_sockets.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
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

constexpr std::size_t kLargest = 8u << 20;  // a snapshot
constexpr std::size_t kMostProcesses = 1024;
constexpr std::chrono::seconds kEnough{1};  // beyond the time that was given
// A process that writes nothing for so long has ended; a child of its own may hold the socket.
constexpr std::chrono::seconds kSilence{10};
// Snapshots come once a second. Two that are read closer together waited for this process, which
// had not run for a while: a rate over their distance means nothing.
constexpr std::chrono::duration<double> kShortest{0.5};

// The number behind `begins` in a name, which is a user's.
std::optional<uid_t> user_in(std::string_view name, std::string_view begins) {
    uid_t user = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(begins) || name.size() == begins.size()) {
        return std::nullopt;
    }
    const auto read = std::from_chars(name.data() + begins.size(), end, user);
    return read.ec == std::errc() && read.ptr == end ? std::optional(user) : std::nullopt;
}

// Names in a folder, as far as it can be read.
std::vector<std::string> names_in(const std::string& folder, std::error_code& error) {
    std::vector<std::string> names;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        names.push_back(at->path().filename().string());
    }
    return names;
}

// Who has the other end: nobody may speak for another user.
bool speaks_for(int socket, uid_t user) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == user;
}

// Of a process that was killed. One that is new may be about to listen.
void remove_left_over(const std::string& path) {
    struct stat status {};
    constexpr time_t kNew = 60;  // seconds
    if (::lstat(path.c_str(), &status) == 0 && ::time(nullptr) - status.st_mtime > kNew) {
        ::unlink(path.c_str());
    }
}

bool is_socket(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

std::vector<LiveSockets::Folder> LiveSockets::folders() const {
    std::vector<Folder> folders;
    for (const std::string& folder : live_folders(user_)) {
        folders.push_back({folder, user_});
    }
    // As the job's environment may have had it, whatever this one's is.
    folders.push_back({fmt::format("/run/user/{}/deft", user_), user_});
    std::error_code ignored;
    for (const std::string& name : names_in("/run/user", ignored)) {
        if (const auto user = user_in(name, ""); user && user_ == 0) {
            folders.push_back({"/run/user/" + name + "/deft", *user});
        }
    }
    for (const std::string& name : names_in("/tmp", ignored)) {
        if (const auto user = user_in(name, "deft-"); user && user_ == 0) {
            folders.push_back({"/tmp/" + name, *user});
        }
    }
    return folders;
}

void LiveSockets::look() {
    problems_.clear();
    full_.clear();
    for (const Folder& folder : folders()) {
        // Somebody else may have made it, with whatever is in it.
        if (is_private(folder.path, folder.owner)) {
            look_into(folder);
        }
    }
}

void LiveSockets::look_into(const Folder& folder) {
    std::error_code error;
    for (const std::string& name : names_in(folder.path, error)) {
        const std::string path = folder.path + "/" + name;
        if (name.ends_with(".sock") && processes_.count(path) == 0 &&
            processes_.size() < kMostProcesses && is_socket(path)) {
            connect(path, folder.owner);
        }
    }
    if (error) {
        problems_.push_back(folder.path + ": " + error.message());
    }
}

void LiveSockets::connect(const std::string& path, uid_t owner) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    UniqueFd made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made || path.size() >= sizeof(address.sun_path)) {
        problems_.push_back(path + ": " + std::strerror(made ? ENAMETOOLONG : errno));
        return;
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        if (errno == ECONNREFUSED) {
            remove_left_over(path);
        } else if (errno == EAGAIN) {  // it lets nobody in: stopped
            full_.push_back(path);
        } else if (errno != ENOENT) {
            problems_.push_back(path + ": " + std::strerror(errno));
        }
    } else if (speaks_for(made.get(), owner)) {
        Process& process = processes_[path];
        process.socket = std::move(made);
        process.heard = Clock::now();
    }
}

void LiveSockets::update(Process& process, std::vector<ObserveFile> records,
                         Clock::time_point now) {
    if (process.snapshots > 0 && now - process.records_at >= kShortest) {
        process.earlier = process.records.empty() ? std::vector<ObservedLink>{}
                                                  : std::move(process.records.front().links);
        process.earlier_at = process.records_at;
    }
    process.records = std::move(records);
    process.records_at = now;
    ++process.snapshots;
    const bool known = process.earlier_at != Clock::time_point{};
    process.seconds = known ? std::chrono::duration<double>(now - process.earlier_at).count() : 0;
}

void LiveSockets::take(const std::string& path, Process& process, std::string_view more) {
    process.heard = Clock::now();
    std::size_t searched = process.text.size();
    process.text += more;
    for (;;) {
        // A snapshot ends with an empty line; one without ranks is nothing else.
        const bool none = process.text.starts_with('\n');
        const auto end = none ? 0 : process.text.find("\n\n", searched > 0 ? searched - 1 : 0);
        if (end == process.text.npos) {
            break;
        }
        const std::string snapshot = none ? "" : process.text.substr(0, end + 1);
        process.text.erase(0, none ? 1 : end + 2);
        searched = 0;
        if (none) {
            update(process, {}, process.heard);
            continue;
        }
        try {
            std::vector<ObserveFile> records;
            for (const std::string_view record : records_in(snapshot)) {
                records.push_back(parse_observe_file(path, std::string(record)));
            }
            update(process, std::move(records), process.heard);
        } catch (const std::runtime_error& error) {
            problems_.emplace_back(error.what());
            process.unreadable = true;
        }
    }
    process.unreadable = process.unreadable || process.text.size() > kLargest;
}

void LiveSockets::read(Clock::time_point until) {
    std::erase_if(processes_,
                  [](const auto& entry) { return Clock::now() - entry.second.heard > kSilence; });
    look();
    for (;;) {
        std::vector<pollfd> polled;
        std::vector<decltype(processes_)::iterator> asked;
        for (auto each = processes_.begin(); each != processes_.end(); ++each) {
            polled.push_back({each->second.socket.get(), POLLIN, 0});
            asked.push_back(each);
        }
        // What has come is read however late it is: this may not have run for a while.
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        const bool late = left.count() <= 0;
        const int ready =
            ::poll(polled.data(), polled.size(), late ? 0 : static_cast<int>(left.count()));
        if (ready <= 0 || Clock::now() > until + kEnough) {
            return;  // nothing is there, or it never ends; or a signal has come
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

std::vector<LiveRank> LiveSockets::ranks() const {
    std::vector<LiveRank> all;
    for (const auto& [path, process] : processes_) {
        for (const ObserveFile& record : process.records) {
            all.push_back({record, process.earlier, process.seconds});
        }
    }
    std::stable_sort(all.begin(), all.end(), [](const LiveRank& a, const LiveRank& b) {
        return std::tie(a.record.job.id, a.record.rank) < std::tie(b.record.job.id, b.record.rank);
    });
    return all;
}

Answers LiveSockets::answers() const {
    Answers answers;
    answers.silent = full_.size();
    for (const auto& [path, process] : processes_) {
        if (process.snapshots == 0) {
            ++answers.silent;
        } else if (process.snapshots == 1) {
            ++answers.first;
        } else {
            ++answers.complete;
        }
    }
    return answers;
}

std::vector<std::string> LiveSockets::silent() const {
    std::vector<std::string> paths = full_;
    for (const auto& [path, process] : processes_) {
        if (process.snapshots == 0) {
            paths.push_back(path);
        }
    }
    return paths;
}

}  // namespace deft::tools
