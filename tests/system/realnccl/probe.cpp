// SPDX-License-Identifier: Apache-2.0
// What the real NCCL answers to calls that need no GPU, for comparison with and without the
// preload.
#include <nccl.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
    int version = 0;
    const int got = ncclGetVersion(&version);
    std::printf("version=%d,%d\n", got, version);
    ncclUniqueId id;
    std::memset(&id, 0xff, sizeof(id));
    std::printf("id=%d ", ncclGetUniqueId(&id));
    // Random magic, address and port come first; everything behind them is zero.
    if (argc > 1 && std::strcmp(argv[1], "whole-id") == 0) {
        for (const char byte : id.internal) {
            std::printf("%02x", static_cast<unsigned char>(byte));
        }
    } else {
        for (int i = 40; i < NCCL_UNIQUE_ID_BYTES; ++i) {
            std::printf("%02x", static_cast<unsigned char>(id.internal[i]));
        }
    }
    std::printf("\n");
    for (int code = 0; code < ncclNumResults + 2; ++code) {
        std::printf("%d: %s\n", code, ncclGetErrorString(static_cast<ncclResult_t>(code)));
    }
    const int started = ncclGroupStart();
    const int ended = ncclGroupEnd();
    std::printf("group=%d,%d unbalanced=%d\n", started, ended, ncclGroupEnd());
    float buffer[4] = {};
    std::printf("null=%d destroy=%d\n",
                ncclAllReduce(buffer, buffer, 4, ncclFloat, ncclSum, nullptr, nullptr),
                ncclCommDestroy(nullptr));
    ncclComm_t comm = nullptr;
    std::printf("init=%d\n", ncclCommInitRank(&comm, 1, id, 0));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    std::printf("init_config=%d\n", ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    return 0;
}
