// SPDX-License-Identifier: Apache-2.0
#include "tools/version_text.h"

#include <fmt/format.h>

#include "base/build_version.h"
#include "base/supported.h"
#include "tools/elf_dynamic.h"

namespace deft::tools {

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
    if (!product.net_abis.empty()) {
        text += fmt::format(", network plugin v{} to v{}", product.net_abis.front(),
                            product.net_abis.back());
    }
    return text + "\n";
}

}  // namespace deft::tools
