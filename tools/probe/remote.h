// SPDX-License-Identifier: Apache-2.0
// Programs on other hosts, by ssh or srun; on this host without either.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace deft::tools::probe {

struct Starter {
    std::vector<std::string> ssh = {"ssh"};  // the command and its own options
    bool slurm = false;                      // srun in its place
    std::string deft;                        // path of this command on the other hosts

    // The words that run `deft` with these arguments on the host.
    std::vector<std::string> words(const std::string& host,
                                   const std::vector<std::string>& arguments) const;
};

// One that runs. Its standard input stays open for as long as this lives, then it is ended.
class RemoteProgram {
public:
    explicit RemoteProgram(const std::vector<std::string>& words);
    ~RemoteProgram();
    RemoteProgram(RemoteProgram&& other) noexcept;
    RemoteProgram& operator=(RemoteProgram&&) = delete;
    RemoteProgram(const RemoteProgram&) = delete;
    RemoteProgram& operator=(const RemoteProgram&) = delete;

    // The next line of its standard output, without its end. False: the output has ended, or the
    // time is over. What it complains goes to standard error, as it comes.
    bool read_line(std::string& line, std::chrono::steady_clock::time_point deadline);
    // All that is left of it.
    std::string read_all(std::chrono::steady_clock::time_point deadline);
    // Closes its standard input and waits. Its exit status; 255 where it had to be killed.
    int end(std::chrono::milliseconds patience);

private:
    pid_t pid_ = -1;
    UniqueFd input_, output_;
    std::string pending_;  // read, and not yet returned

    // False: nothing more will come in time.
    bool read_more(std::chrono::steady_clock::time_point deadline);
};

}  // namespace deft::tools::probe
