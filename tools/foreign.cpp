// SPDX-License-Identifier: Apache-2.0
#include "tools/foreign.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/unique_fd.h"

namespace deft::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMost = std::size_t{4} << 20;

// What a process that answers in steps shares with the one that waits.
struct Steps {
    std::atomic<unsigned> count{0};
    std::array<char, 1024> name{};
};
Steps* steps = nullptr;

// When waiting is to end.
class Patience {
public:
    explicit Patience(std::chrono::milliseconds limit) : limit_(limit) {}

    // 0: it has ended.
    int milliseconds_left() {
        const unsigned count = steps == nullptr ? 0 : steps->count.load();
        if (count != seen_) {
            seen_ = count;
            since_ = Clock::now();
        }
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(since_ + limit_ - Clock::now());
        return static_cast<int>(std::max<long>(left.count(), 0));
    }

private:
    std::chrono::milliseconds limit_;
    Clock::time_point since_ = Clock::now();
    unsigned seen_ = 0;
};

// Until the pipe's end; false: patience ended.
bool read_until(int fd, Patience patience, std::string& text) {
    std::array<char, 4096> buffer{};
    while (text.size() < kMost) {
        pollfd ready{fd, POLLIN, 0};
        const int left = patience.milliseconds_left();
        if (left == 0) {
            return false;
        }
        const int count = ::poll(&ready, 1, left);
        if (count == 0) {
            continue;
        }
        const ssize_t bytes = count > 0 ? ::read(fd, buffer.data(), buffer.size()) : -1;
        if (bytes == 0) {
            return true;
        }
        if (bytes > 0) {
            text.append(buffer.data(), static_cast<std::size_t>(bytes));
        } else if (errno != EINTR) {
            return true;
        }
    }
    return true;
}

// One that waits inside a driver does not even die: it is left to whoever reaps orphans.
void end_group(pid_t group) {
    (void)::kill(-group, SIGKILL);
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    while (::waitpid(group, nullptr, WNOHANG) == 0 && Clock::now() < deadline) {
        (void)::poll(nullptr, 0, 1);
    }
}

// In the child: a group of its own, which ends with the doctor, and says nothing on its terminal.
void stand_apart() {
    (void)::setpgid(0, 0);
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        (void)::dup2(nothing, fd);
    }
}

std::optional<std::string> ask(const std::function<void(int)>& child_work,
                               std::chrono::milliseconds limit) {
    const Patience patience(limit);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return "";
    }
    const UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const pid_t child = ::fork();
    if (child < 0) {
        return "";
    }
    if (child == 0) {
        stand_apart();
        child_work(to.get());
        ::_exit(1);
    }
    (void)::setpgid(child, child);  // whoever comes first
    to.reset();
    std::string text;
    const bool in_time = read_until(from.get(), patience, text);
    end_group(child);
    return in_time ? std::optional(text) : std::nullopt;
}

void write_all(int fd, const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
        const ssize_t bytes = ::write(fd, text.data() + at, text.size() - at);
        if (bytes <= 0 && errno != EINTR) {
            return;
        }
        at += bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
    }
}

}  // namespace

std::optional<std::string> answer_in_time(const std::function<std::string()>& question,
                                          std::chrono::milliseconds limit) {
    return ask(
        [&](int to) {
            try {
                write_all(to, question());
            } catch (...) {  // NOLINT(bugprone-empty-catch): the answer stays empty
            }
            ::_exit(0);
        },
        limit);
}

std::optional<std::string> answer_in_steps(const std::function<std::string()>& question,
                                           std::chrono::milliseconds limit, std::string& step) {
    void* const shared =
        ::mmap(nullptr, sizeof(Steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return question();
    }
    steps = new (shared) Steps;
    auto answer = answer_in_time(question, limit);
    steps->name.back() = '\0';
    step = steps->name.data();
    steps = nullptr;
    (void)::munmap(shared, sizeof(Steps));
    return answer;
}

void looking_at(const std::string& what) {
    if (steps != nullptr) {
        std::strncpy(steps->name.data(), what.c_str(), steps->name.size() - 1);
        ++steps->count;
    }
}

std::optional<std::string> output_in_time(const std::vector<std::string>& words,
                                          std::chrono::milliseconds limit) {
    return ask(
        [&](int to) {
            std::vector<char*> arguments;
            for (const std::string& word : words) {
                arguments.push_back(const_cast<char*>(word.c_str()));
            }
            arguments.push_back(nullptr);
            (void)::dup2(to, STDOUT_FILENO);
            ::execv(arguments.front(), arguments.data());
        },
        limit);
}

}  // namespace deft::tools
