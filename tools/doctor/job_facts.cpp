// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/job_facts.h"

#include <utility>

#include "tools/doctor/host_facts.h"
#include "tools/doctor/nccl_search.h"
#include "tools/doctor/preload_facts.h"
#include "tools/doctor/python_packages.h"
#include "tools/foreign.h"
#include "tools/ucx_links.h"
#include "topology/nccl_settings.h"

namespace deft::tools::doctor {
namespace {

// Nothing of deft's is preloaded, and no plugin of deft's is named: the command is judged as if it
// were behind `deft run`.
bool assumed(const Job& job, const PreloadFacts& preload) {
    const std::string plugin = job.environment.get("NCCL_NET_PLUGIN").value_or("");
    return !job.command.under_deft_run && preload.ours() == nullptr && preload.split_path.empty() &&
           !names_deft(plugin, false);
}

// Next to which the module for UCX lies.
std::string preloaded_file(const PreloadFacts& preload) {
    const PreloadEntry* const ours = preload.ours();
    return ours != nullptr && !ours->path.empty() ? ours->path : preload.library;
}

}  // namespace

void look_at_host(Job& job, Facts& facts) {
    adopt_environment(job.environment);
    looking_at("the settings, and the files and folders that they name");
    facts.settings = read_settings(job);
    looking_at("the links");
    facts.links = read_links(facts.settings->config);
    looking_at("UCX");
    facts.ucx = read_ucx(facts.settings->config, job.environment,
                         job.command.under_deft_run || job.command.assumed,
                         facts.preload ? preloaded_file(*facts.preload) : "");
    looking_at("the limits, the clock and the driver of this host");
    facts.host = read_host(facts.settings->config, job.environment);
}

void look_at_job(Job job, Facts& facts) {
    looking_at("what is preloaded");
    facts.preload = read_preload(job);
    job.command.assumed = assumed(job, *facts.preload);
    facts.plugin = read_plugin(job);
    if (job.command.imports_torch && surely_missing(job.python, job.environment, "torch")) {
        job.command.without_torch = job.python;
    }
    looking_at("NCCL, and the libraries that the program is linked to");
    facts.nccl = find_nccl(job, facts.started);
    look_at_host(job, facts);
    facts.command = std::move(job.command);
}

}  // namespace deft::tools::doctor
