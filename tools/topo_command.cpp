// SPDX-License-Identifier: Apache-2.0
#include "tools/topo_command.h"

#include <sys/stat.h>

#include "base/config.h"
#include "tools/input_file.h"
#include "tools/text_output.h"
#include "tools/topo_matrix.h"
#include "tools/ucx_links.h"

namespace deft::tools {

using namespace discovery;

namespace {

constexpr std::size_t kLargestFile = std::size_t{64} << 20;

bool is_folder(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

std::string topo_matrix(const Machine& machine) {
    const std::string text = matrix_text(machine, true);
    return text.empty() ? "no GPU and no network card with a known place\n" : text;
}

bool read_machine_file(const std::string& path, std::size_t host, Machine& machine,
                       std::string& problem) {
    std::string text;
    std::string why;
    if (is_folder(path)) {
        if (read_sysfs_copy(path, machine, why)) {
            return true;
        }
    } else if (read_input(path, kLargestFile, text, why) &&
               read_machine_text(path, text, host, machine, why)) {
        return true;
    }
    problem = path + ": " + why;
    return false;
}

int topo(const TopoOptions& options) {
    Machine machine;
    if (!options.input.empty()) {
        std::string problem;
        if (!read_machine_file(options.input, options.host, machine, problem)) {
            complain(problem);
            return kProblem;
        }
    } else {
        for (const std::string& problem : Config::process().problems()) {
            complain(problem);
            return kProblem;
        }
        machine = this_host();
    }
    const int printed = print(options.json     ? topo_json(machine)
                              : options.matrix ? topo_matrix(machine)
                                               : topo_text(machine));
    if (!machine.problem.empty()) {
        complain(machine.problem);
        return kProblem;
    }
    return printed;
}

}  // namespace deft::tools
