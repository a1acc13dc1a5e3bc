// SPDX-License-Identifier: Apache-2.0
// Which NCCL, and whether it fits.
#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>

#include "base/supported.h"
#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

void judge_copy(const NcclCopy& copy, Diagnoses& found) {
    if (copy.version > 0 && copy.version < kOldestNccl) {
        found.push_back({Finding::NcclTooOld,
                         fmt::format("{} is NCCL {}", copy.path, nccl_version_text(copy.version)),
                         copy.found_by, ""});
    } else if (copy.version >= kNewestNccl) {
        found.push_back({Finding::NcclTooNew,
                         fmt::format("{} is NCCL {}", copy.path, nccl_version_text(copy.version)),
                         copy.found_by, ""});
    }
    if (copy.is_static) {
        found.push_back(
            {Finding::NcclStatic,
             fmt::format("NCCL {} is linked into {}", nccl_version_text(copy.version), copy.path),
             "it defines ncclAllReduce itself", ""});
    }
}

void judge_several(const std::vector<NcclCopy>& copies, Diagnoses& found) {
    const NcclCopy& used = copies.front();
    for (const NcclCopy& other : copies) {
        if (other.path != used.path && other.version != used.version) {
            found.push_back(
                {Finding::NcclSeveral,
                 fmt::format("NCCL {} at {} is used, and NCCL {} at {} is in reach",
                             nccl_version_text(used.version), used.path,
                             nccl_version_text(other.version), other.path),
                 fmt::format("the first: {}; the second: {}", used.found_by, other.found_by), ""});
        }
    }
}

// "12.4" of 12040; the driver's minor version does not matter within one major (CUDA's minor
// version compatibility).
void judge_driver(const NcclCopy& copy, const GpuFacts& gpu, Diagnoses& found) {
    const int built_for = std::atoi(copy.cuda.c_str());
    if (gpu.cuda > 0 && built_for > gpu.cuda / 1000) {
        found.push_back({Finding::GpuDriverTooOld,
                         fmt::format("{} is built for CUDA {}, and the driver supports CUDA {}.{}",
                                     copy.path, copy.cuda, gpu.cuda / 1000, gpu.cuda % 1000 / 10),
                         fmt::format("driver {}", gpu.library_driver), ""});
    }
}

// How NCCL's variables count: any number but 0.
bool is_on(const NcclValue* value) {
    return value != nullptr && std::strtoll(value->value.c_str(), nullptr, 0) != 0;
}

// Variables by which ranks of one host no longer go the ways that NCCL would take.
void judge_ways(const PluginFacts& plugin, std::size_t gpus, Diagnoses& found) {
    const NcclValue* const shm = plugin.setting("NCCL_SHM_DISABLE");
    const NcclValue* const p2p = plugin.setting("NCCL_P2P_DISABLE");
    const NcclValue* const level = plugin.setting("NCCL_P2P_LEVEL");
    const bool never = level != nullptr && (level->value == "LOC" || level->value == "0");
    const bool alone = is_on(p2p) || never;
    const std::string without = is_on(p2p) ? "NCCL_P2P_DISABLE=" + p2p->value
                                : never    ? "NCCL_P2P_LEVEL=" + level->value
                                           : std::string();
    if (is_on(shm)) {
        // Else only GPUs lose something that do not reach each other, and who knows that.
        found.push_back({alone && gpus > 1 ? Finding::NcclDetour : Finding::NcclNoShm,
                         alone ? fmt::format("NCCL_SHM_DISABLE={} and {}: all that ranks of one "
                                             "host say to each other goes over its network",
                                             shm->value, without)
                               : fmt::format("NCCL_SHM_DISABLE={}: ranks of one host that cannot "
                                             "use P2P talk over its network",
                                             shm->value),
                         shm->origin, ""});
    } else if (alone) {
        found.push_back({Finding::NcclNoPeers,
                         without + ": the GPUs of a host reach each other through its memory",
                         is_on(p2p) ? p2p->origin : level->origin, ""});
    }
}

}  // namespace

void judge_nccl(const Facts& facts, Diagnoses& found) {
    if (facts.plugin) {
        judge_ways(*facts.plugin, facts.host ? facts.host->gpu.count : 0, found);
    }
    for (const ProcessFacts& process : facts.processes) {
        for (const NcclCopy& copy : process.nccl) {
            judge_copy(copy, found);
        }
        if (!process.nccl.empty()) {
            judge_several(process.nccl, found);
        }
    }
    if (!facts.nccl) {
        return;
    }
    const NcclFacts& nccl = *facts.nccl;
    if (!nccl.override_problem.empty()) {
        found.push_back({Finding::NcclLibUnusable, nccl.override_problem, "DEFT_NCCL_LIB", ""});
    }
    if (!nccl.broken.empty()) {
        found.push_back({Finding::NcclMissing,
                         nccl.broken + " is no library, and the loader ends the program there",
                         "ELF header", "remove the file, or put NCCL in its place"});
    } else if (nccl.copies.empty()) {
        const bool asked = facts.command && !facts.command->words.empty();
        found.push_back({nccl.needed ? Finding::NcclMissing : Finding::NcclUnknown,
                         nccl.needed ? fmt::format("{} needs NCCL, and no libnccl.so.2 is found",
                                                   facts.command->words.front())
                         : asked     ? "no NCCL was found for this command"
                                     : "no NCCL was found on this host",
                         "LD_LIBRARY_PATH, the loader's cache, Python's packages", ""});
    }
    if (nccl.copies.empty()) {
        return;
    }
    judge_copy(nccl.copies.front(), found);
    judge_several(nccl.copies, found);
    if (facts.host) {
        judge_driver(nccl.copies.front(), facts.host->gpu, found);
    }
}

}  // namespace deft::tools::doctor
