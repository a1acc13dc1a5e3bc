// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/python_packages.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "tools/doctor/nccl_search.h"
#include "tools/elf_file.h"

namespace deft::tools::doctor {
namespace {

namespace fs = std::filesystem;

// A line of a .pth file is a folder, a comment, or begins with "import".
bool adds_folders(const fs::path& file) {
    std::ifstream text(file);
    for (std::string line; std::getline(text, line);) {
        if (!line.empty() && !line.starts_with('#') && !line.starts_with("import")) {
            return true;
        }
    }
    return false;
}

// It has the package, or may lead to it.
bool may_have(const fs::path& folder, const std::string& package) {
    std::error_code ignored;
    if (fs::exists(folder / package, ignored) || fs::exists(folder / (package + ".py"), ignored)) {
        return true;
    }
    const fs::directory_iterator entries(folder, ignored);
    return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
        const std::string ending = entry.path().extension().string();
        return ending == ".egg-link" || ending == ".egg" ||
               (ending == ".pth" && adds_folders(entry.path()));
    });
}

}  // namespace

bool surely_missing(const std::string& interpreter, const Environment& environment,
                    const std::string& package) {
    // A script in its place (a version manager's) knows where the real one is; nobody else does.
    if (read_elf(interpreter).kind != ElfFile::Kind::Elf || environment.get("PYTHONHOME")) {
        return false;
    }
    std::vector<std::string> folders = python_folders(interpreter, environment);
    if (folders.empty()) {
        return false;
    }
    folders.emplace_back(".");
    return std::none_of(folders.begin(), folders.end(),
                        [&](const std::string& folder) { return may_have(folder, package); });
}

}  // namespace deft::tools::doctor
