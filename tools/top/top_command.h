// SPDX-License-Identifier: Apache-2.0
// deft top: jobs of this host while they run.
#pragma once

namespace CLI {
class App;
}

namespace deft::tools {

struct TopCommand {
    CLI::App* top = nullptr;
    bool once = false;

    void add_to(CLI::App& app);
    // kProblem where no process runs deft here.
    int run() const;
};

}  // namespace deft::tools
