// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/metrics_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/config.h"
#include "base/unique_fd.h"

namespace deft {
namespace {

constexpr int kMostFiles = 256;
// A living rank writes its file every five minutes at least (DEFT_METRICS_INTERVAL).
constexpr time_t kStaleSeconds = 15 * 60;

// Cuts a number and the "-" before it from the end.
bool cut_number(std::string_view& name) {
    const auto dash = name.rfind('-');
    const std::string_view number = dash == name.npos ? "" : name.substr(dash + 1);
    if (number.empty() || number.find_first_not_of("0123456789") != number.npos) {
        return false;
    }
    name = name.substr(0, dash);
    return true;
}

// "deft-HOST-PID-RANK.prom", or what becomes that. Somebody else's deft-nodes.prom is not.
bool ours(std::string_view name) {
    const auto end = name.rfind(".prom");
    if (end == name.npos || (name.size() > end + 5 && !name.substr(end).starts_with(".prom.tmp"))) {
        return false;
    }
    name = name.substr(0, end);
    return name.starts_with("deft-") && cut_number(name) && cut_number(name);
}

}  // namespace

std::string metrics_path(const std::string& folder, int rank) {
    return folder + expand_pattern("/deft-%h-%p-%r.prom", rank);
}

std::string make_room(const std::string& path) {
    const std::string folder = path.substr(0, path.rfind('/'));
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
    if (entries == nullptr) {
        return std::strerror(errno);
    }
    const time_t now = ::time(nullptr);
    int files = 0;
    while (const dirent* const entry = ::readdir(entries.get())) {
        const std::string file = folder + "/" + entry->d_name;
        struct stat status {};
        if (!ours(entry->d_name) || ::lstat(file.c_str(), &status) != 0) {
            continue;
        }
        const bool stale = now - status.st_mtime > kStaleSeconds;
        if (!stale || ::unlink(file.c_str()) != 0) {
            ++files;
        }
    }
    return files < kMostFiles ? "" : "256 files of deft's are there already";
}

// As write_atomically(), but for a folder in which others may write: nothing that is there already
// is written to. The collector runs as another user, whatever the job's umask is.
int write_metrics(const std::string& path, const std::string& text) {
    const std::string temporary = path + ".tmp";
    ::unlink(temporary.c_str());
    const UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!file) {
        return errno;
    }
    int error = ::fchmod(file.get(), 0644) == 0 ? 0 : errno;
    std::size_t written = 0;
    while (error == 0 && written < text.size()) {
        const ssize_t step = ::write(file.get(), text.data() + written, text.size() - written);
        if (step > 0) {
            written += static_cast<std::size_t>(step);
        } else if (step == 0 || errno != EINTR) {
            error = step == 0 ? EIO : errno;
        }
    }
    if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
        error = errno;
    }
    if (error != 0) {
        ::unlink(temporary.c_str());
    }
    return error;
}

}  // namespace deft
