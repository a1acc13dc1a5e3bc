// SPDX-License-Identifier: Apache-2.0
// The processes of process_test: argv[1] says which.
#include <cuda.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "softdev/cuda/softdev.h"

namespace {

#define REQUIRE(condition)                                                 \
    do {                                                                   \
        if (!(condition)) {                                                \
            std::fprintf(stderr, "%d: %s failed\n", __LINE__, #condition); \
            std::_Exit(3);                                                 \
        }                                                                  \
    } while (false)

CUcontext use_device() {
    CUcontext context = nullptr;
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    return context;
}

CUstream make_stream() {
    CUstream s = nullptr;
    REQUIRE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return s;
}

void hold_for_ever(CUstream s) {
    REQUIRE(cuLaunchHostFunc(
                s, [](void*) { pause(); }, nullptr) == CUDA_SUCCESS);
}

int leak() {
    use_device();
    for (int i = 0; i < 4; ++i) {
        const CUstream s = make_stream();
        if (i == 0) {
            hold_for_ever(s);
        }
        for (int k = 0; k < 1000; ++k) {
            REQUIRE(cuLaunchHostFunc(
                        s, [](void*) { usleep(100); }, nullptr) == CUDA_SUCCESS);
        }
    }
    return 0;
}

int waiting() {
    const CUcontext context = use_device();
    const CUstream s = make_stream();
    hold_for_ever(s);
    std::thread([=] {
        cuCtxSetCurrent(context);
        cuStreamSynchronize(s);
    }).detach();
    return 0;
}

struct LateCaller {
    ~LateCaller() {
        cuEventDestroy(event);
        cuStreamDestroy(stream);
        cuStreamSynchronize(nullptr);
    }
    CUstream stream = nullptr;
    CUevent event = nullptr;
};
LateCaller late_caller;

int with_statics() {
    use_device();
    late_caller.stream = make_stream();
    REQUIRE(cuEventCreate(&late_caller.event, 0) == CUDA_SUCCESS);
    REQUIRE(cuLaunchHostFunc(
                late_caller.stream, [](void*) {}, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(late_caller.event, late_caller.stream) == CUDA_SUCCESS);
    return 0;
}

int exit_of(pid_t child) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int with_fork() {
    use_device();
    const CUstream s = make_stream();
    REQUIRE(cuLaunchHostFunc(
                s, [](void*) { usleep(20000); }, nullptr) == CUDA_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
        std::exit(0);
    }
    REQUIRE(exit_of(child) == 0);
    child = fork();
    if (child == 0) {
        std::exit(cuStreamQuery(s) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 4);
    }
    REQUIRE(exit_of(child) == 0);
    REQUIRE(cuStreamSynchronize(s) == CUDA_SUCCESS);
    return 0;
}

int early_fork() {
    const pid_t child = fork();
    if (child == 0) {
        use_device();
        std::exit(cuStreamSynchronize(make_stream()) == CUDA_SUCCESS ? 0 : 4);
    }
    return exit_of(child);
}

int misuse() {
    use_device();
    const CUstream a = make_stream();
    const CUstream b = make_stream();
    CUdeviceptr p = 0;
    REQUIRE(cuMemAlloc(&p, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(p, 1, 64, a) == CUDA_SUCCESS);
    cuMemsetD8Async(p, 2, 64, b);
    return static_cast<int>(softdevReports());
}

int pageable() {
    use_device();
    char text[64] = {};
    const softdev_access_t access{text, sizeof text, 1};
    const CUstream s = make_stream();
    const CUresult result = softdevStreamEnqueue(
        s, "plain", [](void*) { return CUDA_SUCCESS; }, nullptr, nullptr, &access, 1);
    REQUIRE(cuStreamSynchronize(s) == CUDA_SUCCESS);
    return static_cast<int>(result);
}

// A copy from plain host memory into the device's reads before the call returns, as a staged one:
// NCCL copies from its stack.
int staged() {
    use_device();
    const CUstream s = make_stream();
    CUdeviceptr p = 0;
    REQUIRE(cuMemAlloc(&p, 8) == CUDA_SUCCESS);
    std::atomic<bool> held{true};
    REQUIRE(cuLaunchHostFunc(
                s,
                [](void* flag) {
                    while (static_cast<std::atomic<bool>*>(flag)->load()) {
                        std::this_thread::yield();
                    }
                },
                &held) == CUDA_SUCCESS);
    int words[2] = {7, 7};
    const auto from = reinterpret_cast<CUdeviceptr>(&words[0]);
    REQUIRE(cuMemcpyAsync(p, from, sizeof words[0], s) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync(p + 4, &words[1], sizeof words[1], s) == CUDA_SUCCESS);
    words[0] = words[1] = 1;
    held = false;
    int found[2] = {};
    REQUIRE(cuMemcpyDtoHAsync(found, p, sizeof found, s) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(s) == CUDA_SUCCESS);
    return found[0] == 7 && found[1] == 7 ? 0 : 1;
}

int devices() {
    const CUresult ready = cuInit(0);
    int count = 0;
    return ready != CUDA_SUCCESS ? static_cast<int>(ready) : (cuDeviceGetCount(&count), count);
}

// Many ranges touched once each on a stream that the host follows: the memory in use stays the
// same.
int history() {
    use_device();
    const CUstream s = make_stream();
    CUdeviceptr p = 0;
    constexpr unsigned kWords = 1u << 18;
    REQUIRE(cuMemAlloc(&p, kWords * 4) == CUDA_SUCCESS);
    std::size_t after_first = 0;
    for (int round = 0; round < 6; ++round) {
        for (unsigned i = 0; i < kWords; i += 8) {
            REQUIRE(cuMemsetD32Async(p + 4 * i, i, 1 + i % 7, s) == CUDA_SUCCESS);
            if (i % 2048 == 0) {
                REQUIRE(cuStreamSynchronize(s) == CUDA_SUCCESS);
            }
        }
        REQUIRE(cuStreamSynchronize(s) == CUDA_SUCCESS);
        const std::size_t used = mallinfo2().uordblks;
        if (round == 0) {
            after_first = used;
        }
        REQUIRE(used < after_first + (1u << 20));
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    const struct {
        const char* name;
        int (*run)();
    } cases[] = {{"leak", leak},         {"waiting", waiting},  {"static", with_statics},
                 {"fork", with_fork},    {"early", early_fork}, {"misuse", misuse},
                 {"pageable", pageable}, {"staged", staged},    {"devices", devices},
                 {"history", history}};
    for (const auto& c : cases) {
        if (what == c.name) {
            return c.run();
        }
    }
    return 2;
}
