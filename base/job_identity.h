// SPDX-License-Identifier: Apache-2.0
// What sections of a configuration file and DEFT_CANARY ask about a job: its host, its Slurm
// partition, its user, its program, its id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deft {

enum class JobTrait : std::uint8_t { Host, Partition, User, Executable };
// "host, partition, user, executable": as a section names them.
inline constexpr const char* kJobTraits[] = {"host", "partition", "user", "executable"};

class JobIdentity {
public:
    // `environment`: "NAME=value", as Config::load() takes them; it has to stay. `command`: the
    // words of a command that is to be started; empty: this process. Looks at nothing yet.
    explicit JobIdentity(std::span<const char* const> environment,
                         std::vector<std::string> command = {})
        : environment_(environment), command_(std::move(command)) {}

    // One of the job's names of this kind fits the pattern, which is one of fnmatch(3). Reads no
    // more than files of /proc and /etc/passwd: a directory service may be slow.
    bool matches(JobTrait trait, const std::string& pattern) const;

    // What a job has: the short and the long name of the host; the number and the name of the
    // user; the path and the name of the program, and of the script that a Python runs.
    std::vector<std::string> names(JobTrait trait) const;

    // What the batch system or the launcher calls the whole job; every rank of it finds the same.
    // Empty: there is none.
    struct Id {
        std::string value;
        const char* from = "";  // the variable
    };
    Id id() const;

    // The first entry's value, as getenv() finds it; empty: there is none.
    std::string_view variable(std::string_view name) const;

private:
    std::span<const char* const> environment_;
    std::vector<std::string> command_;
};

}  // namespace deft
