// SPDX-License-Identifier: Apache-2.0
// Processes of this host that run deft, looked at while they run.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tools/observe_file.h"
#include "tools/top/live_rank.h"

namespace deft::tools {

// Sockets of this user's processes; of root, those of all users.
class LiveSockets {
public:
    explicit LiveSockets(uid_t user) : user_(user) {}

    // Looks for processes that have come, then reads what all send until `until`.
    void read(std::chrono::steady_clock::time_point until);

    // The ranks of the processes that are there, by job and rank.
    std::vector<LiveRank> ranks() const;
    // What the processes have sent so far.
    Answers answers() const;
    // Sockets that are open and have sent nothing yet: a stopped process, or one too busy to
    // answer.
    std::vector<std::string> silent() const;
    // Why a socket cannot be used, one line for each; the last look's.
    const std::vector<std::string>& problems() const { return problems_; }

private:
    struct Process {
        UniqueFd socket;
        std::string text;  // of the snapshot that is under way
        std::chrono::steady_clock::time_point heard;
        std::vector<ObserveFile> records;
        std::chrono::steady_clock::time_point records_at;
        std::vector<ObservedLink> earlier;  // links of the process, as they were `seconds` before
        double seconds = 0;
        std::chrono::steady_clock::time_point earlier_at;
        std::size_t snapshots = 0;
        bool unreadable = false;  // what it sends is no record
    };
    struct Folder {
        std::string path;
        uid_t owner;
    };
    std::vector<Folder> folders() const;
    void look();
    void look_into(const Folder& folder);
    void connect(const std::string& path, uid_t owner);
    void take(const std::string& path, Process& process, std::string_view more);
    static void update(Process& process, std::vector<ObserveFile> records,
                       std::chrono::steady_clock::time_point now);

    const uid_t user_;
    std::map<std::string, Process> processes_;  // by path
    std::vector<std::string> problems_;
    std::vector<std::string> full_;  // sockets with as many waiting viewers as the kernel allows
};

}  // namespace deft::tools
