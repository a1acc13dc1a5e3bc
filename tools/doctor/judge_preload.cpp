// SPDX-License-Identifier: Apache-2.0
// What is preloaded: is it there, is it of one build, and is it alone?
#include <fmt/format.h>

#include "tools/doctor/judge.h"
#include "tools/library.h"

namespace deft::tools::doctor {
namespace {

void judge_guests(const PreloadFacts& preload, Diagnoses& found) {
    for (const PreloadEntry& entry : preload.entries) {
        if (!entry.guest || entry.path.empty() || !entry.problem.empty()) {
            continue;
        }
        if (entry.version.empty()) {
            found.push_back({Finding::GuestAlone,
                             fmt::format("{} has no libnccl-net-deft.so next to it", entry.path),
                             "its folder", ""});
        } else if (entry.version != preload.command_version) {
            found.push_back({Finding::LibraryVersion,
                             fmt::format("the library next to {} is {}, this command is {}",
                                         entry.path, entry.version, preload.command_version),
                             "deft_version() of the library", ""});
        }
    }
}

void judge_other_hooks(const PreloadFacts& preload, Diagnoses& found) {
    bool behind = false;
    for (const PreloadEntry& entry : preload.entries) {
        if (entry.library || entry.guest) {
            behind = true;
        }
        if (entry.hooks_nccl) {
            found.push_back({Finding::PreloadHooked,
                             fmt::format("{} names {}, which has NCCL's functions, {} deft",
                                         entry.from, entry.name, behind ? "behind" : "before"),
                             "its symbols", ""});
        }
    }
}

// The loader opens what LD_AUDIT names in a space of its own, where it preloads nothing.
void judge_audit(const std::string& audit, const std::string& from, Diagnoses& found) {
    const bool ours =
        audit.find("libnccl-net-deft") != audit.npos || audit.find("libdeft-preload") != audit.npos;
    if (ours) {
        found.push_back(
            {Finding::AuditSet,
             fmt::format("LD_AUDIT='{}' names deft, which is preloaded by LD_PRELOAD", audit), from,
             "start the job with deft run, and unset LD_AUDIT"});
    } else if (!audit.empty()) {
        found.push_back(
            {Finding::AuditSet,
             fmt::format("LD_AUDIT='{}' has a say in which function a call reaches", audit), from,
             ""});
    }
}

// Empty: what the table of findings says.
std::string remedy_of(const std::string& problem) {
    if (problem.find("cannot be read") != problem.npos) {
        return "let the job's user read it: chmod a+r the file, a+x its folders";
    }
    if (problem.find("cut off") != problem.npos) {
        return "install deft anew: the file was copied in part";
    }
    return problem.find("failed to map") == problem.npos
               ? ""
               : "mount its file system without noexec, or move the library";
}

// What is wrong with a name that leads to no file; empty: what the table of findings says.
std::string remedy_of_name(const std::string& name) {
    if (name.ends_with('\r')) {
        return "its line ends in CR LF: sed -i 's/\\r$//' the file that sets the variable";
    }
    if (name.find_first_of("'\"") != name.npos) {
        return "take the quotes out: they are a part of the value here";
    }
    if (name.find_first_of(",;") != name.npos) {
        return "put ':' between the names, and nothing else";
    }
    const bool loaders = name.find("$ORIGIN") != name.npos || name.find("$LIB") != name.npos;
    if (name.starts_with('~') || (name.find('$') != name.npos && !loaders)) {
        return "write the whole path: nothing replaces '~' or a variable here";
    }
    if (!name.starts_with('/') && !loaders) {
        return "write the whole path: a name alone is looked for where the loader finds libraries, "
               "a relative path in the working folder";
    }
    return {};
}

// An entry that names deft's library or its guest.
void judge_entry(const PreloadEntry& entry, Diagnoses& found) {
    if (entry.path.empty()) {
        found.push_back({Finding::PreloadFileMissing,
                         fmt::format("{} names {}: {}", entry.from, entry.name, entry.problem),
                         "the loader only warns, and starts the program without it",
                         remedy_of_name(entry.name)});
    } else if (!entry.problem.empty()) {
        found.push_back({Finding::PreloadUnusable,
                         fmt::format("{} names {}: {}", entry.from, entry.path, entry.problem),
                         "ELF header, or the loader's own word", remedy_of(entry.problem)});
    }
    if (entry.library && entry.from.starts_with("/etc/")) {
        found.push_back({Finding::PreloadHostWide,
                         fmt::format("{} names {}", entry.from, entry.name), entry.from, ""});
    }
}

void judge_libraries(const PreloadFacts& preload, Diagnoses& found) {
    const PreloadEntry* first = nullptr;
    for (const PreloadEntry& entry : preload.entries) {
        if (!entry.library || entry.path.empty() || !entry.problem.empty()) {
            continue;
        }
        first = first == nullptr ? &entry : first;
        if (!entry.version.empty() && entry.version != preload.command_version) {
            found.push_back({Finding::LibraryVersion,
                             fmt::format("{} is {}, this command is {}", entry.path, entry.version,
                                         preload.command_version),
                             "deft_version() of the library", ""});
        }
        if (entry.path != first->path) {
            found.push_back({Finding::PreloadTwice,
                             fmt::format("{} and {} are both preloaded", first->path, entry.path),
                             entry.from, ""});
        }
    }
}

// What deft run would preload.
void judge_installed(const PreloadFacts& preload, Diagnoses& found) {
    if (preload.library.empty()) {
        found.push_back({Finding::LibraryMissing, preload.library_problem,
                         "next to this command, and in its build tree", ""});
    } else if (preload.library_version.starts_with(kNotLoaded)) {
        found.push_back({Finding::PreloadUnusable,
                         fmt::format("{}: {}", preload.library, preload.library_version),
                         "the loader's own word", remedy_of(preload.library_version)});
    } else if (preload.library_version != preload.command_version) {
        found.push_back({Finding::LibraryVersion,
                         fmt::format("{} is {}, this command is {}", preload.library,
                                     preload.library_version, preload.command_version),
                         "deft_version() of the library", ""});
    }
}

}  // namespace

void judge_preload(const Facts& facts, Diagnoses& found) {
    if (facts.settings && facts.settings->other.contains("LD_AUDIT")) {
        const auto origin = facts.settings->origins.find("LD_AUDIT");
        judge_audit(facts.settings->other.at("LD_AUDIT"),
                    origin == facts.settings->origins.end() ? "environment" : origin->second,
                    found);
    }
    if (!facts.preload) {
        return;
    }
    const PreloadFacts& preload = *facts.preload;
    if (!preload.split_path.empty()) {
        found.push_back({Finding::PreloadPathSplit,
                         fmt::format("LD_PRELOAD has the path '{}', which the loader splits",
                                     preload.split_path),
                         "ld.so(8): blanks and colons separate, '$' expands", ""});
    }
    for (const PreloadEntry& entry : preload.entries) {
        if (entry.library || entry.guest) {
            judge_entry(entry, found);
        }
        if (entry.ucx_module) {
            found.push_back({Finding::UcxPreloaded,
                             fmt::format("{} names {}", entry.from, entry.name), "docs/ucx.md",
                             ""});
        }
    }
    judge_libraries(preload, found);
    judge_guests(preload, found);
    judge_other_hooks(preload, found);
    if (preload.ours() == nullptr && facts.processes.empty()) {
        judge_installed(preload, found);
    }
}

}  // namespace deft::tools::doctor
