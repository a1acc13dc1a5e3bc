// SPDX-License-Identifier: Apache-2.0
// How the ranks of a test job get NCCL's unique id: rank 0 makes it and leaves it in a file.
#pragma once

#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace deft::test {

inline ncclUniqueId exchange_id(int rank, const std::string& path,
                                decltype(&ncclGetUniqueId) get_unique_id = &ncclGetUniqueId) {
    const auto need = [](bool good, const char* what) {
        if (!good) {
            std::printf("%s failed\n", what);
            std::exit(1);
        }
    };
    ncclUniqueId id{};
    if (rank == 0) {
        need(get_unique_id(&id) == ncclSuccess, "ncclGetUniqueId");
        std::FILE* const file = std::fopen((path + ".part").c_str(), "wb");
        need(file != nullptr && std::fwrite(&id, sizeof(id), 1, file) == 1, "writing the id");
        std::fclose(file);
        need(std::rename((path + ".part").c_str(), path.c_str()) == 0, "rename");
        return id;
    }
    for (int waited = 0; waited < 12000; ++waited) {
        if (std::FILE* const file = std::fopen(path.c_str(), "rb")) {
            need(std::fread(&id, sizeof(id), 1, file) == 1, "reading the id");
            std::fclose(file);
            return id;
        }
        ::usleep(10000);
    }
    need(false, "waiting for rank 0");
    return id;
}

}  // namespace deft::test
