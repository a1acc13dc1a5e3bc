// SPDX-License-Identifier: Apache-2.0
// `deft probe`: its options and what it does.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace deft::tools {

struct ProbeOptions {
    std::vector<std::string> hosts;
    std::string hostfile;
    std::string listen;   // port; 0: any
    std::string connect;  // HOST:PORT, or several with commas between them
    std::string by;       // ssh, srun; empty: srun in a Slurm job, else ssh
    std::string ssh = "ssh";
    std::string deft;  // path on the other hosts; empty: that of this command
    double seconds = 0.5;
    bool for_program = false;  // of --listen
    bool json = false;
};

struct ProbeCommand {
    ProbeOptions options;
    CLI::App* probe = nullptr;

    void add_to(CLI::App& app);
};

// 0 all is well, 1 something does not pass, 2 wrong usage, 3 a host gave no answer.
int probe_command(const ProbeOptions& options);

}  // namespace deft::tools
