// SPDX-License-Identifier: Apache-2.0
#include "tools/output_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/record_pattern.h"
#include "base/replaceable.h"

namespace deft::tools {
namespace {

// The folder of the file that this pattern names on this host, for rank 0.
std::string folder_of(const std::string& pattern, std::string_view job) {
    const std::string path = expand_pattern(pattern, 0, job);
    const auto slash = path.rfind('/');
    return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Empty, or why the folder could not be made.
std::string unmakable(const std::string& folder) {
    const auto slash = folder.find_last_not_of('/') == folder.npos ? 0 : folder.rfind('/');
    const std::string parent = slash == folder.npos ? "."
                               : slash == 0         ? "/"
                                                    : folder.substr(0, slash);
    struct stat status {};
    if (::stat(parent.c_str(), &status) != 0) {
        return errno == ENOENT && parent != folder ? unmakable(parent)
                                                   : parent + ": " + std::strerror(errno);
    }
    errno = S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
    if (errno != 0 || ::access(parent.c_str(), W_OK | X_OK) != 0) {
        return parent + ": " + std::strerror(errno);
    }
    return {};
}

}  // namespace

std::string unwritable(const Config& config, Key key, bool make) {
    const Setting& setting = config.setting(key);
    if (setting.text.empty()) {
        return {};
    }
    const std::string pattern = key == Key::Out ? record_pattern(config) : setting.text;
    const std::string path = expand_pattern(pattern, 0, config.job_id());
    const std::string folder = folder_of(pattern, config.job_id());
    const auto complaint = [&](std::string_view what) {
        return fmt::format("{}='{}' ({}): {}", variable(key).name, setting.text, setting.origin,
                           what);
    };
    // What is written in one step takes the place of what is there.
    std::string target = path;
    const Place place = key == Key::Out ? place_of(target) : Place::Replaceable;
    if (place == Place::Nowhere) {
        return {};
    }
    if (place == Place::Other && !std::filesystem::is_directory(path)) {
        return complaint(fmt::format("{} is not a file; name one, or /dev/null for none", path));
    }
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) {
        const int error = errno;
        if (error != ENOENT || !make) {
            return complaint(
                fmt::format("folder {}: {}; make it first", folder, std::strerror(error)));
        }
        const std::string why = unmakable(folder);
        return why.empty() ? why
                           : complaint(fmt::format("folder {} cannot be made, {}; name another "
                                                   "place",
                                                   folder, why));
    }
    if (!S_ISDIR(status.st_mode)) {
        return complaint(fmt::format("{} is not a folder", folder));
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
        return complaint(fmt::format("folder {} is not writable: {}; name another place", folder,
                                     std::strerror(errno)));
    }
    if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        return complaint(fmt::format("{} is a folder; name a file", path));
    }
    struct statvfs room {};
    const bool known = ::statvfs(folder.c_str(), &room) == 0 && room.f_blocks > 0;
    if (known && (::geteuid() == 0 ? room.f_bfree : room.f_bavail) == 0) {
        return complaint(
            fmt::format("the file system of folder {} is full; name another place, or "
                        "make room",
                        folder));
    }
    return {};
}

std::string unusable_metrics(const Config& config) {
    const Setting& setting = config.setting(Key::Metrics);
    struct stat status {};
    errno = 0;
    if (setting.text.empty() ||
        (::stat(setting.text.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         ::access(setting.text.c_str(), W_OK | X_OK) == 0)) {
        return {};
    }
    const int error = errno == 0 ? ENOTDIR : errno;
    const bool tilde = setting.text.starts_with("~");  // the shell's alone, unquoted
    return fmt::format("{}='{}' ({}): {}", variable(Key::Metrics).name, setting.text,
                       setting.origin,
                       tilde ? "'~' is not replaced by a folder; write it out"
                             : std::string(std::strerror(error)) +
                                   "; make the folder, with mode 1777 (docs/metrics.md)");
}

bool one_folder(const std::string& pattern) {
    if (pattern.empty() || pattern.ends_with('/')) {
        return false;
    }
    const std::string folder = pattern.substr(0, pattern.rfind('/') + 1);
    return folder.find("%p") == folder.npos && folder.find("%j") == folder.npos &&
           expand_pattern(folder, 0) == expand_pattern(folder, 1);
}

std::string make_folder(const std::string& pattern) {
    const std::string folder = folder_of(pattern, {});
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    return error ? fmt::format("folder {} cannot be made: {}", folder, error.message())
                 : std::string();
}

}  // namespace deft::tools
