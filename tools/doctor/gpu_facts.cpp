// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/gpu_facts.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "tools/foreign.h"
#include "tools/loader_search.h"
#include "topology/discovery/machine.h"

namespace deft::tools::doctor {
namespace {

// CUDA that a driver branch supports: the last branch that came with each major version. Within a
// major version newer libraries run on older drivers (NVIDIA: CUDA compatibility).
int cuda_of_driver(const std::string& version) {
    const int branch = std::atoi(version.c_str());
    if (branch >= 580) {
        return 13000;
    }
    return branch >= 525 ? 12000 : branch >= 450 ? 11000 : branch > 0 ? 10000 : 0;
}

// Why NVML cannot tell of this host's GPUs; empty: it can. It talks to the driver, which may hang.
std::string ask_nvml() {
    discovery::Machine machine;
    discovery::read_nvml(machine);
    return machine.notes.empty() ? "" : machine.notes.front();
}

// A container may have any of the host's numbers: /dev/nvidia3. WSL has /dev/dxg.
bool has_device_file() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
        const std::string name = entry.path().filename().string();
        constexpr std::string_view kBeginning = "nvidia";
        const bool number = name.size() > kBeginning.size() && name.starts_with(kBeginning) &&
                            name.find_first_not_of("0123456789", kBeginning.size()) == name.npos;
        if (number || name == "dxg") {
            return true;
        }
    }
    return false;
}

}  // namespace

std::string driver_version_in(const std::string& text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
        const auto digit = [&](std::size_t i) {
            return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
        };
        if (!digit(at) || (at > 0 && digit(at - 1))) {
            continue;
        }
        const auto end = std::min(text.find_first_not_of("0123456789.", at), text.size());
        std::string version = text.substr(at, end - at);
        // Three digits before the first dot: no version of gcc or of a kernel has that.
        if (version.find('.') == 3 && version.size() > 4) {
            return version;
        }
        at = end;
    }
    return {};
}

GpuFacts read_gpu(const Environment& environment) {
    GpuFacts facts;
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::getline(file, line);
    facts.kernel_driver = driver_version_in(line);
    facts.visible = environment.get("CUDA_VISIBLE_DEVICES");
    const std::string wanted = environment.get("NVIDIA_VISIBLE_DEVICES").value_or("");
    if (wanted == "void" || wanted == "none") {
        facts.container_gpus = wanted;
    }
    facts.device_file = has_device_file();
    discovery::Machine machine;
    discovery::read_sysfs_machine("/sys", machine);
    facts.count = machine.gpus.size();
    facts.nvml_problem = answer_in_time(ask_nvml, kDriverLimit)
                             .value_or("the driver's library libnvidia-ml.so.1 does not answer");
    const std::string library = LoaderSearch(environment).find("libcuda.so.1").path;
    if (!library.empty()) {
        std::error_code error;
        const auto real = std::filesystem::canonical(library, error);
        facts.library = library;
        facts.library_driver = error ? "" : driver_version_in(real.filename().string());
    }
    facts.cuda =
        cuda_of_driver(facts.library_driver.empty() ? facts.kernel_driver : facts.library_driver);
    return facts;
}

}  // namespace deft::tools::doctor
