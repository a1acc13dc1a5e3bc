// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <vector>

#include "base/replaceable.h"
#include "base/unique_fd.h"
#include "shim/runtime/own_job.h"

namespace deft {
namespace {

constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr int kTurns = 50;  // tries for the lock, 10 ms apart
constexpr std::string_view kBegin = R"({"format":"deft-observe","version":1,"rank":)";

// Holds the folder of a file against the other ranks of this host.
class FolderLock {
public:
    explicit FolderLock(const std::string& path) {
        const auto slash = path.rfind('/');
        const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
        folder_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        for (int turn = 0; folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0; ++turn) {
            // Where a file system knows no locks the last writer wins; the next record mends that.
            if (errno != EWOULDBLOCK && errno != EINTR) {
                break;
            }
            if (turn == kTurns) {
                taken_ = true;
                break;
            }
            const timespec pause{0, 10'000'000};
            ::nanosleep(&pause, nullptr);
        }
    }
    // A child that was forked meanwhile has the lock too, and would keep it: closing is not enough.
    ~FolderLock() {
        if (folder_ && !taken_) {
            ::flock(folder_.get(), LOCK_UN);
        }
    }
    FolderLock(const FolderLock&) = delete;
    // By another rank, for longer than one writes.
    bool taken() const { return taken_; }

private:
    UniqueFd folder_;
    bool taken_ = false;
};

int read_whole(const std::string& path, std::string& text) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
        return errno == ENOENT ? 0 : errno;
    }
    char block[16384];
    while (text.size() < kLargest) {
        const ssize_t got = ::read(file.get(), block, sizeof(block));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? errno : 0;
        }
        text.append(block, static_cast<std::size_t>(got));
    }
    return EFBIG;
}

int write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t step = ::write(file, text.data(), text.size());
        if (step > 0) {
            text.remove_prefix(static_cast<std::size_t>(step));
        } else if (step == 0 || errno != EINTR) {
            return step == 0 ? EIO : errno;
        }
    }
    return 0;
}

int replace(const std::string& path, const std::string& text) {
    const std::string temporary = path + ".tmp" + std::to_string(::getpid());
    ::unlink(temporary.c_str());  // of a process that had this number and was killed
    UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!file) {
        return errno;
    }
    int error = write_all(file.get(), text);
    file.reset();
    if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
        error = errno;
    }
    if (error != 0) {
        ::unlink(temporary.c_str());
    }
    return error;
}

std::string writer_text(std::uint64_t writer) {
    char digits[20];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(writer));
    return digits;
}

// A whole line that begins as records do.
struct Line {
    std::string_view text;  // with its end
    int rank = 0;
    std::string_view writer;
};

bool parse(std::string_view text, Line& line) {
    constexpr std::string_view kWriter = R"(,"writer":")";
    constexpr std::size_t kDigits = 16;
    if (!text.starts_with(kBegin)) {
        return false;
    }
    const char* const end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data() + kBegin.size(), end, line.rank);
    const std::string_view rest(after, static_cast<std::size_t>(end - after));
    if (error != std::errc() || !rest.starts_with(kWriter)) {
        return false;
    }
    line.text = text;
    line.writer = rest.substr(kWriter.size(), kDigits);
    return true;
}

// The records in a file, but for one writer's. What is none, nobody has use for.
std::vector<Line> others(std::string_view file, std::uint64_t writer) {
    const std::string own = writer_text(writer);
    std::vector<Line> lines;
    while (!file.empty()) {
        const auto end = file.find('\n');
        Line line;
        if (end != file.npos && parse(file.substr(0, end + 1), line) && line.writer != own) {
            lines.push_back(line);
        }
        file.remove_prefix(end == file.npos ? file.size() : end + 1);
    }
    return lines;
}

// A job that was over before this process was started has left the file: out of the way with it.
// True: what is still there is of no use.
bool end_earlier(const std::string& path, Earlier earlier, std::int64_t started_ns) {
    struct stat status {};
    if (earlier == Earlier::Look || started_ns == 0 || ::lstat(path.c_str(), &status) != 0) {
        return false;
    }
    const auto& written = status.st_mtim;
    if (std::int64_t{written.tv_sec} * 1'000'000'000 + written.tv_nsec >= started_ns) {
        return false;
    }
    std::string kept = path + ".";
    for (const char c : utc_text(written.tv_sec)) {
        if (c != '-' && c != ':') {
            kept += c;
        }
    }
    return earlier == Earlier::Replace || ::rename(path.c_str(), kept.c_str()) != 0;
}

}  // namespace

std::string record_prefix(int rank, std::uint64_t writer) {
    return std::string(kBegin) + std::to_string(rank) + R"(,"writer":")" + writer_text(writer);
}

int put_record(const std::string& named, const Record& record, Earlier earlier,
               std::int64_t started_ns) {
    std::string path = named;
    switch (place_of(path)) {
        case Place::Nowhere:
            return 0;
        case Place::Other:
            return kNotAFile;
        case Place::Replaceable:
            break;
    }
    const FolderLock lock(path);
    if (lock.taken()) {
        return EWOULDBLOCK;
    }
    std::string file;
    if (!end_earlier(path, earlier, started_ns)) {
        if (const int error = read_whole(path, file); error != 0) {
            return error;
        }
    }
    std::vector<Line> lines = others(file, record.writer);
    lines.push_back({record.line, record.rank, {}});
    std::stable_sort(lines.begin(), lines.end(),
                     [](const Line& a, const Line& b) { return a.rank < b.rank; });
    std::string text;
    for (const Line& line : lines) {
        text += line.text;
    }
    return replace(path, text);
}

void drop_record(const std::string& named, std::uint64_t writer) {
    std::string path = named;
    std::string file;
    if (place_of(path) != Place::Replaceable) {
        return;
    }
    const FolderLock lock(path);
    if (lock.taken() || read_whole(path, file) != 0) {
        return;  // it stays, of the rank that this one was
    }
    std::string text;
    for (const Line& line : others(file, writer)) {
        text += line.text;
    }
    if (text.empty()) {
        ::unlink(path.c_str());
    } else {
        (void)replace(path, text);
    }
}

}  // namespace deft
