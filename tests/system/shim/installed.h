// SPDX-License-Identifier: Apache-2.0
// The guest as it is installed somewhere, with another file or none in the library's place.
#pragma once

#include <string>

#include "tests/system/shim/process.h"

namespace deft::test {

// The test runner puts the product's folder on the loader's path, where the guest looks last.
constexpr const char* kNowhere = "/nonexistent";

class Installed {
public:
    explicit Installed(const std::string& library = "") {
        fs::copy_file(GUEST, guest());
        if (!library.empty()) {
            fs::copy_file(library, folder_ / "libnccl-net-deft.so");
        }
    }
    std::string guest() const { return folder_ / "libdeft-preload.so"; }
    fs::path library() const { return folder_ / "libnccl-net-deft.so"; }
    const fs::path& folder() const { return folder_.path(); }

private:
    Folder folder_;
};

}  // namespace deft::test
