// SPDX-License-Identifier: Apache-2.0
// What `deft topo --input` reads: hwloc's XML and NCCL's. A file is refused with one line, or what
// was read can be walked: every path between GPUs, every link.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "topology/discovery/gpu_paths.h"
#include "topology/discovery/host_links.h"
#include "topology/discovery/machine.h"

using namespace deft;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

void walk(const discovery::Machine& machine) {
    require(machine.gpus.size() <= discovery::kMostGpus);
    require(machine.nics.size() <= discovery::kMostNics);
    for (std::size_t from = 0; from < machine.gpus.size(); ++from) {
        for (std::size_t to = 0; to < machine.gpus.size(); ++to) {
            const discovery::GpuPath path = discovery::gpu_path(machine, from, to);
            require(path.nvlinks >= 0 && std::isfinite(path.gbytes) && path.gbytes >= 0);
            require(!path.text().empty());
        }
    }
    require(std::isfinite(discovery::inside_rate(machine).gbytes));
    for (const discovery::HostLink& link : discovery::host_links(machine)) {
        require(!link.kind.empty() && link.speed_mbps >= 0);
        require((link.driver == discovery::Driver::Nobody) == !link.reason.empty());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    discovery::Machine machine;
    std::string problem;
    if (discovery::read_machine_text("f", text, 1, machine, problem)) {
        walk(machine);
    } else {
        require(!problem.empty() && problem.find('\n') == std::string::npos);
    }
    return 0;
}
