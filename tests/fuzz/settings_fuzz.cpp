// SPDX-License-Identifier: Apache-2.0
// What operators and users write: values of settings, and files of settings. Whatever is refused
// says why in one line; what passes is within its range.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/config_file.h"
#include "plugin/tcp/probed_rates.h"
#include "shim/executor/prediction.h"
#include "shim/settings/networks.h"
#include "topology/interfaces.h"
#include "topology/listening.h"

using namespace deft;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

bool one_line(const std::string& text) {
    return text.find('\n') == std::string::npos;
}

// Of every variable of the table.
void read_values(std::string_view text) {
    for (const Variable& variable : variables()) {
        Setting setting;
        require(one_line(parse_value(variable, text, setting)));
    }
}

void read_small(std::string_view text) {
    Address address;
    (void)parse_address(text, address);
    (void)parse_rate(text);
    PortRange ports;
    if (parse_ports(text, ports)) {
        require(ports.first <= ports.last);
    }
    std::vector<std::string> networks;
    std::string problem;
    if (executor::parse_networks(text, networks, problem)) {
        require(networks.size() <= executor::kMaxNetworks);
    } else {
        require(networks.empty() && !problem.empty());
    }
    executor::Optimizer optimizer;
    (void)executor::parse_optimizer(text, optimizer, problem);
    executor::Prediction prediction;
    (void)executor::parse_prediction(text, optimizer, 1, 1, prediction, problem);
}

void read_file(std::string_view text) {
    static const int file = ::memfd_create("settings", MFD_CLOEXEC);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    static const char* const environment[] = {"SLURM_JOB_ID=7", "SLURM_JOB_PARTITION=gpu"};
    require(::ftruncate(file, 0) == 0 &&
            ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    const JobIdentity job(environment);
    const ConfigFile read = read_config_file(path, job, false);
    for (const ConfigLine& line : read.lines) {
        require(one_line(line.name) && one_line(line.origin));
    }
    for (const std::string& problem : read.problems) {
        require(!problem.empty() && one_line(problem));
    }
    (void)Config::load(environment, path);
}

// DEFT_PROBE.
void read_probe(std::string_view text) {
    std::vector<Address> own(1);
    (void)parse_address("10.1.0.1", own[0]);
    std::string problem;
    const auto rates = net::ProbedRates::from(text, 0, 0, own, problem);
    require(problem.empty() == (rates.size() > 0) && one_line(problem));
}

}  // namespace

// The first byte chooses the reader.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 4) {
        case 0:
            read_values(text);
            break;
        case 1:
            read_small(text);
            break;
        case 2:
            read_file(text);
            break;
        case 3:
            read_probe(text);
            break;
    }
    return 0;
}
