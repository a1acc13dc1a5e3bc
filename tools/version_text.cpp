// SPDX-License-Identifier: Apache-2.0
#include "tools/version_text.h"

#include <fmt/format.h>

#include <vector>

#include "base/build_version.h"
#include "base/supported.h"
#include "tools/elf_dynamic.h"

namespace deft::tools {

namespace {

// "" for a library that offers none, as the guest does.
std::string abi_range(const char* what, const std::vector<int>& versions) {
    if (versions.empty()) {
        return "";
    }
    return fmt::format(", {} v{} to v{}", what, versions.front(), versions.back());
}

}  // namespace

std::string version_details(const std::string& library) {
    const ElfDynamic product = read_elf_dynamic(library, false);
    const ElfDynamic command = read_elf_dynamic("/proc/self/exe", false);
    const std::string version = build_version();
    const auto plus = version.find('+');
    std::string text =
        fmt::format("commit {}\n", plus == version.npos ? "not known" : version.substr(plus + 1));
    text += fmt::format("glibc {} or newer; this command {} or newer\n", product.glibc_needed,
                        command.glibc_needed);
    text += fmt::format("NCCL {}.{} to {}.{}", kOldestNccl / 10000, kOldestNccl % 10000 / 100,
                        kNewestNccl / 10000, kNewestNccl % 10000 / 100 - 1);
    text += abi_range("network plugin", product.net_abis);
    text += abi_range("tuner", product.tuner_abis);
    return text + "\n";
}

}  // namespace deft::tools
