// SPDX-License-Identifier: Apache-2.0
// Where the environment has the ranks of several hosts meet. torchrun's own words: rendezvous.h.
#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>

#include "tools/doctor/judge.h"
#include "tools/doctor/rendezvous.h"

namespace deft::tools::doctor {
namespace {

int number(const SettingsFacts& settings, const char* name) {
    const auto found = settings.other.find(name);
    return found == settings.other.end() ? 0 : std::atoi(found->second.c_str());
}

// Surely more than one host. An allocation of several may be used for a job on one of them.
bool several_hosts(const SettingsFacts& settings, bool srun) {
    const int ranks = number(settings, "WORLD_SIZE");
    const int here = number(settings, "LOCAL_WORLD_SIZE");
    return (here > 0 && ranks > here) || number(settings, "SLURM_STEP_NUM_NODES") > 1 ||
           number(settings, "PET_NNODES") > 1 ||
           (srun && number(settings, "SLURM_JOB_NUM_NODES") > 1);
}

// Surely the first host, where rank 0 listens on every address: loopback is right there, as long as
// nobody hands it on to the others.
bool first_host(const SettingsFacts& settings) {
    const int here = std::max(1, number(settings, "LOCAL_WORLD_SIZE"));
    const auto below = [&](const char* name, int most) {
        const auto found = settings.other.find(name);
        return found != settings.other.end() && !found->second.empty() &&
               number(settings, name) < most;
    };
    return below("RANK", here) || below("NODE_RANK", 1) || below("PET_NODE_RANK", 1) ||
           below("SLURM_NODEID", 1);
}

std::string host_of(const std::string& address) {
    return address.starts_with('[') ? address.substr(0, address.find(']') + 1)
                                    : address.substr(0, address.rfind(':'));
}

}  // namespace

void judge_meeting(const Facts& facts, Diagnoses& found) {
    if (!facts.settings) {
        return;
    }
    const SettingsFacts& settings = *facts.settings;
    const bool srun = facts.command && facts.command->srun;
    if (!several_hosts(settings, srun)) {
        return;
    }
    const HostFacts none;
    const HostFacts& host = facts.host ? *facts.host : none;
    const auto note = [&](const char* name, const std::string& value, const std::string& why,
                          const char* remedy) {
        const auto origin = settings.origins.find(name);
        found.push_back({Finding::RendezvousLonely, fmt::format("{}={}: {}", name, value, why),
                         origin == settings.origins.end() ? "environment" : origin->second,
                         remedy});
    };
    const auto master = settings.other.find("MASTER_ADDR");
    const bool torchrun = facts.command && facts.command->torchrun;  // it sets its ranks another
    const bool own_way = !srun && !settings.origins.contains("MASTER_ADDR") && first_host(settings);
    if (master != settings.other.end() && !torchrun && !own_way) {
        const bool own = master->second == kOwnAddress && !host.own_name_at.empty();
        if (own || is_loopback(master->second)) {
            const bool debian = own || master->second == host.own_name_at;
            note("MASTER_ADDR", master->second,
                 debian ? "/etc/hosts has " + host.own_name_at +
                              " for this host's name, where each host finds itself"
                        : "each host finds itself there",
                 "name the first host: MASTER_ADDR=$(scontrol show hostnames | head -n 1), or an "
                 "address that the others reach");
        }
    }
    // NCCL's rank 0 listens at that address alone, unlike PyTorch's.
    const auto id = settings.other.find("NCCL_COMM_ID");
    if (id != settings.other.end()) {
        const bool own =
            !host.own_name_at.empty() && !host.name.empty() && host_of(id->second) == host.name;
        if (own || is_loopback(id->second)) {
            note("NCCL_COMM_ID", id->second,
                 own ? "/etc/hosts has " + host.own_name_at +
                           " for this host's name, and rank 0 listens there alone"
                     : "rank 0 listens where no other host reaches it",
                 "name an address of the first host that the others reach");
        }
    }
}

}  // namespace deft::tools::doctor
