// SPDX-License-Identifier: Apache-2.0
#include "tools/probe/remote.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/probe/host_list.h"
#include "tools/text_output.h"

namespace deft::tools::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOutput = std::size_t{16} << 20;

[[noreturn]] void become(const std::vector<std::string>& words, int input, int output) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)::dup2(input, STDIN_FILENO);
    (void)::dup2(output, STDOUT_FILENO);
    std::vector<char*> arguments;
    for (const std::string& word : words) {
        arguments.push_back(const_cast<char*>(word.c_str()));  // execvp() does not write to them
    }
    arguments.push_back(nullptr);
    ::execvp(arguments.front(), arguments.data());
    complain(words.front() + ": " + std::strerror(errno));
    ::_exit(kCommandNotFound);
}

}  // namespace

std::vector<std::string> Starter::words(const std::string& host,
                                        const std::vector<std::string>& arguments) const {
    std::vector<std::string> all;
    if (!is_this_host(host)) {
        if (slurm) {
            all = {"srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=" + host};
        } else {
            all = ssh;
            all.push_back(host);
        }
    }
    const bool by_shell = !all.empty() && !slurm;  // of the other host, which ssh asks
    all.push_back(by_shell ? shell_quoted(deft) : deft);
    for (const std::string& argument : arguments) {
        all.push_back(by_shell ? shell_quoted(argument) : argument);
    }
    return all;
}

RemoteProgram::RemoteProgram(const std::vector<std::string>& words) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0) {
        return;
    }
    UniqueFd theirs_in(in[0]);
    input_.reset(in[1]);
    if (::pipe2(out, O_CLOEXEC) != 0) {
        return;
    }
    output_.reset(out[0]);
    UniqueFd theirs_out(out[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
        become(words, theirs_in.get(), theirs_out.get());
    }
}

RemoteProgram::RemoteProgram(RemoteProgram&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      pending_(std::move(other.pending_)) {}

RemoteProgram::~RemoteProgram() {
    (void)end(std::chrono::seconds(5));
}

bool RemoteProgram::read_more(Clock::time_point deadline) {
    std::array<char, 4096> bytes{};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd ready{output_.get(), POLLIN, 0};
    const int count =
        ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30)));
    if (count < 0 && errno == EINTR) {
        return true;
    }
    const ssize_t got = count > 0 ? ::read(output_.get(), bytes.data(), bytes.size()) : 0;
    if (got <= 0 || pending_.size() > kMostOutput) {
        return false;
    }
    pending_.append(bytes.data(), static_cast<std::size_t>(got));
    return true;
}

bool RemoteProgram::read_line(std::string& line, Clock::time_point deadline) {
    for (;;) {
        const auto end = pending_.find('\n');
        if (end != pending_.npos) {
            line = pending_.substr(0, end);
            pending_.erase(0, end + 1);
            return true;
        }
        if (!read_more(deadline)) {
            return false;
        }
    }
}

std::string RemoteProgram::read_all(Clock::time_point deadline) {
    while (read_more(deadline)) {
    }
    return std::exchange(pending_, {});
}

int RemoteProgram::end(std::chrono::milliseconds patience) {
    input_.reset();
    if (pid_ <= 0) {
        return 255;
    }
    const auto deadline = Clock::now() + patience;
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && Clock::now() < deadline) {
        (void)::poll(nullptr, 0, 2);
    }
    if (ended == 0) {
        (void)::kill(pid_, SIGKILL);
        (void)::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    return ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace deft::tools::probe
