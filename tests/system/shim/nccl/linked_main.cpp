// SPDX-License-Identifier: Apache-2.0
// A program linked to NCCL, as nccl-tests are. Prints the line of user.h; more with an argument:
//   fork      a child makes calls too and exits normally
//   threads   the number of threads before and after the first communicator
//   failures  what NCCL answers to wrong calls
//   rank R    one of two ranks, of which the first makes the id
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/system/shim/nccl/user.h"

namespace {

long threads() {
    namespace fs = std::filesystem;
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

const Api kApi{&ncclGetVersion, &ncclGetUniqueId, &ncclGetErrorString, &ncclCommInitRank,
               &ncclAllReduce,  &ncclBcast,       &ncclCommDestroy};

int run_fork() {
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    float buffer[16] = {};
    ncclGetUniqueId(&id);
    ncclCommInitRank(&comm, 1, id, 0);
    for (int i = 0; i < 10; ++i) {
        ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, comm, nullptr);
    }
    const pid_t child = ::fork();
    if (child == 0) {
        int result = 0;
        for (int i = 0; i < 1000; ++i) {
            result |= ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, comm, nullptr);
        }
        ncclComm_t other = nullptr;
        result |= ncclCommInitRank(&other, 1, id, 0);
        result |= ncclCommDestroy(other);
        std::printf("child result=%d threads=%ld\n", result, threads());
        std::exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    std::printf("parent status=%d threads=%ld\n", status, threads());
    return 0;
}

int run_threads() {
    int version = 0;
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    ncclGetVersion(&version);
    ncclGetUniqueId(&id);
    const long before = threads();
    ncclCommInitRank(&comm, 1, id, 0);
    std::printf("threads before=%ld after=%ld\n", before, threads());
    return 0;
}

int run_failures() {
    float buffer[16] = {};
    ncclUniqueId wrong{};
    ncclComm_t comm = nullptr;
    std::printf("null=%d wrong_id=%d",
                ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, nullptr, nullptr),
                ncclCommInitRank(&comm, 1, wrong, 0));
    std::printf(" comm=%d error=%s\n", comm != nullptr, ncclGetErrorString(ncclInvalidArgument));
    return 0;
}

int run_rank(int rank) {
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    std::memcpy(id.internal, "fake", 4);  // as rank 0 gets it from the library
    int result = rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    for (int i = 0; result == ncclSuccess && i < 2; ++i) {
        result = ncclCommInitRank(&comm, 2, id, rank);
    }
    std::printf("rank %d result=%d\n", rank, result);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (std::strcmp(what, "fork") == 0) {
        return run_fork();
    }
    if (std::strcmp(what, "threads") == 0) {
        return run_threads();
    }
    if (std::strcmp(what, "failures") == 0) {
        return run_failures();
    }
    if (std::strcmp(what, "rank") == 0 && argc > 2) {
        return run_rank(std::atoi(argv[2]));
    }
    run_job(kApi, 20, "");
    return 0;
}
