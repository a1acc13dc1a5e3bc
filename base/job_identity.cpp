// SPDX-License-Identifier: Apache-2.0
#include "base/job_identity.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <pwd.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>

#include "base/unique_fd.h"

namespace deft {
namespace {

std::string_view base_name(std::string_view path) {
    const auto slash = path.rfind('/');
    return slash == path.npos ? path : path.substr(slash + 1);
}

std::vector<std::string> host_names() {
    char name[256] = "";
    if (::gethostname(name, sizeof(name) - 1) != 0) {
        return {};
    }
    const std::string whole = name;
    const std::string brief = whole.substr(0, whole.find('.'));
    return brief == whole ? std::vector{whole} : std::vector{whole, brief};
}

// Not getpwuid(3): that loads modules and asks servers.
std::string local_user_name(uid_t user) {
    std::FILE* const file = std::fopen("/etc/passwd", "re");
    if (file == nullptr) {
        return {};
    }
    std::string name;
    passwd entry{};
    passwd* found = nullptr;
    char text[8192];  // of one line
    while (name.empty() && ::fgetpwent_r(file, &entry, text, sizeof(text), &found) == 0) {
        if (found->pw_uid == user) {
            name = found->pw_name;
        }
    }
    std::fclose(file);
    return name;
}

// The words of this process's command line, the first few KiB of it.
std::vector<std::string> own_command() {
    const UniqueFd fd(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
    char text[4096];
    const ssize_t size = fd ? ::read(fd.get(), text, sizeof(text)) : -1;
    std::vector<std::string> words;
    std::string_view rest(text, size > 0 ? static_cast<std::size_t>(size) : 0);
    while (!rest.empty()) {
        const auto end = rest.find('\0');
        words.emplace_back(rest.substr(0, end));
        rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
    }
    return words;
}

// Of "python3 -u -m torch.distributed.run": "torch.distributed.run".
std::string script_of(const std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i] == "-m" && i + 1 < words.size()) {
            return words[i + 1];
        }
        if (words[i] == "-W" || words[i] == "-X") {
            ++i;  // and its value
        } else if (words[i] == "-c" || words[i] == "-") {
            return {};
        } else if (!words[i].starts_with('-')) {
            return words[i];
        }
    }
    return {};
}

std::vector<std::string> program_names(const std::vector<std::string>& given) {
    std::vector<std::string> names;
    const auto add = [&names](std::string_view path) {
        for (const std::string_view name : {path, base_name(path)}) {
            if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
                names.emplace_back(name);
            }
        }
    };
    if (given.empty()) {
        char path[4096];
        const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
        add({path, size > 0 ? static_cast<std::size_t>(size) : 0});
    }
    const std::vector<std::string> words = given.empty() ? own_command() : given;
    if (!words.empty()) {
        add(words.front());
    }
    const bool python = std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return base_name(name).starts_with("python");
    });
    if (python) {
        add(script_of(words));
    }
    return names;
}

}  // namespace

// Of an outer system before one inside it. SLURM_JOB_ID differs between the components of a
// heterogeneous job, JOB_ID is anybody's word.
JobIdentity::Id JobIdentity::id() const {
    for (const char* const name :
         {"SLURM_HET_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID",
          "FLUX_JOB_ID", "COBALT_JOBID", "OAR_JOB_ID", "AWS_BATCH_JOB_ID", "RAY_JOB_ID",
          "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"}) {
        std::string_view value = variable(name);
        value = value.substr(0, value.find('#'));  // AWS: of which node
        // What torchrun says where nobody has named the run.
        if (!value.empty() && value != "none") {
            return {std::string(value), name};
        }
    }
    return {};
}

std::string_view JobIdentity::variable(std::string_view name) const {
    for (const char* const entry : environment_) {
        const std::string_view text(entry);
        if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=') {
            return text.substr(name.size() + 1);
        }
    }
    return {};
}

std::vector<std::string> JobIdentity::names(JobTrait trait) const {
    std::vector<std::string> names;
    switch (trait) {
        case JobTrait::Host:
            return host_names();
        case JobTrait::Partition:
            if (const std::string_view partition = variable("SLURM_JOB_PARTITION");
                !partition.empty()) {
                names.emplace_back(partition);
            }
            return names;
        case JobTrait::User: {
            const uid_t user = ::geteuid();
            names.push_back(std::to_string(user));
            if (std::string name = local_user_name(user); !name.empty()) {
                names.push_back(std::move(name));
                return names;
            }
            for (const char* const said : {"SLURM_JOB_USER", "USER", "LOGNAME"}) {
                if (const std::string_view name = variable(said); !name.empty()) {
                    names.emplace_back(name);
                }
            }
            return names;
        }
        case JobTrait::Executable:
            return program_names(command_);
    }
    return names;
}

bool JobIdentity::matches(JobTrait trait, const std::string& pattern) const {
    const std::vector<std::string> mine = names(trait);
    return std::any_of(mine.begin(), mine.end(), [&](const std::string& name) {
        return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
}

}  // namespace deft
