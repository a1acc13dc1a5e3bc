// SPDX-License-Identifier: Apache-2.0
// Processes of a running job: is deft in them, and is it used?
#include <fmt/format.h>
#include <algorithm>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

std::string who(const ProcessFacts& process) {
    return fmt::format("process {} ({})", process.pid, process.name);
}

bool has_deft(const std::optional<std::string>& preload) {
    return preload && (preload->find("libnccl-net-deft") != std::string::npos ||
                       preload->find("libdeft-preload") != std::string::npos);
}

// Why a process that should have the library does not have it.
void judge_absence(const ProcessFacts& process, Diagnoses& found) {
    const std::string name = who(process);
    if (process.is_static) {
        found.push_back({Finding::ProgramStatic,
                         name + " is statically linked, so nothing can be preloaded into it",
                         "no loader in its memory map", ""});
    } else if (process.raised) {
        found.push_back({Finding::ProgramRaised,
                         name + " runs with raised privileges, so the loader dropped LD_PRELOAD",
                         "AT_SECURE in its auxiliary vector", ""});
    } else if (has_deft(process.preload)) {
        found.push_back({Finding::PreloadFileMissing,
                         fmt::format("{} was started with LD_PRELOAD={}, and the library is not in "
                                     "it",
                                     name, *process.preload),
                         "its memory map; the loader says on its standard error why",
                         "correct the path, on this host and in the job's container"});
    } else if (has_deft(process.parent_preload)) {
        found.push_back({Finding::PreloadLost,
                         fmt::format("{} started {} without LD_PRELOAD", process.parent, name),
                         fmt::format("LD_PRELOAD of the parent is {}", *process.parent_preload),
                         ""});
    } else {
        found.push_back(
            {Finding::PreloadNotReached,
             name + (process.nccl.empty() ? " has loaded neither NCCL nor deft's library"
                                          : " uses NCCL, and runs without deft's library"),
             process.preload ? "LD_PRELOAD=" + *process.preload
                             : "no LD_PRELOAD in its environment",
             ""});
    }
}

void judge_use(const ProcessFacts& process, Diagnoses& found) {
    const std::string name = who(process);
    if (!process.other_plugins.empty() && !process.plugin_active) {
        found.push_back({Finding::PluginOther,
                         fmt::format("{} has loaded another network plugin, {}", name,
                                     process.other_plugins.front()),
                         "its memory map", ""});
    }
    const bool active = process.plugin_active || process.hooks_active;
    if (!process.communicates && !active) {
        found.push_back({Finding::ProcessIdle, name + " has made no communicator yet",
                         "no thread of deft's or NCCL's", ""});
        return;
    }
    if (!process.hooks_active) {
        found.push_back({Finding::NcclByHandle,
                         name + " has communicators, and its NCCL calls go past the preload",
                         "NCCL or deft's plugin is at work, and no thread of the hooks is", ""});
    } else if (!process.plugin_active && process.other_plugins.empty()) {
        // A job on one host has no network connection: nothing is wrong with that.
        found.push_back({Finding::ProcessIdle,
                         name + " has no connection of deft's plugin (yet, or it runs on one host)",
                         "no thread of the plugin", ""});
    }
}

void judge_one(const ProcessFacts& process, Diagnoses& found) {
    if (process.missing) {
        found.push_back(
            {Finding::ProcessMissing, fmt::format("no process {}", process.pid), "/proc", ""});
        return;
    }
    if (!process.problem.empty()) {
        found.push_back({Finding::ProcessUnreadable,
                         fmt::format("process {}: {}", process.pid, process.problem), "/proc", ""});
        return;
    }
    if (process.state == 'Z') {
        found.push_back({Finding::ProcessMissing,
                         who(process) + " has ended, and its parent has not asked for it",
                         "state Z", ""});
        return;
    }
    if (process.state == 'T' || process.state == 't') {
        found.push_back({Finding::ProcessStopped, who(process) + " is stopped",
                         fmt::format("state {}", process.state), ""});
    }
    if (process.library.empty()) {
        if (!process.guest || process.communicates) {
            judge_absence(process, found);
        }
        return;
    }
    if (process.library_deleted) {
        found.push_back({Finding::LibraryReplaced,
                         fmt::format("{} uses {}, which was removed or replaced", who(process),
                                     process.library),
                         "its memory map says (deleted)", ""});
    }
    judge_use(process, found);
}

}  // namespace

void judge_processes(const Facts& facts, Diagnoses& found) {
    // Of launcher and workers those count that have NCCL; without any, the one that was named.
    const bool some = std::any_of(facts.processes.begin(), facts.processes.end(),
                                  [](const ProcessFacts& each) { return !each.nccl.empty(); });
    for (const ProcessFacts& process : facts.processes) {
        if (!some ? &process == &facts.processes.front() : !process.nccl.empty()) {
            judge_one(process, found);
        }
    }
}

}  // namespace deft::tools::doctor
