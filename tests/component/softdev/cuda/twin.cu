// SPDX-License-Identifier: Apache-2.0
// A program as nvcc builds it: kernels launched with <<<>>> through the shared runtime, run by
// their CPU twins.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "softdev/cuda/softdev.h"

__global__ void add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}
template <typename T>
__global__ void scale(T* a, T factor, int n) {
    const int i = threadIdx.x;
    if (i < n) {
        a[i] *= factor;
    }
}
__global__ void without_twin() {}

static void add_twin(const unsigned grid[3], const unsigned block[3], void** args) {
    const float* a = *static_cast<const float**>(args[0]);
    const float* b = *static_cast<const float**>(args[1]);
    float* c = *static_cast<float**>(args[2]);
    const int n = *static_cast<int*>(args[3]);
    for (int i = 0; i < n && i < static_cast<int>(grid[0] * block[0]); ++i) {
        c[i] = a[i] + b[i];
    }
}
static void scale_twin(const unsigned*, const unsigned*, void** args) {
    float* a = *static_cast<float**>(args[0]);
    for (int i = 0; i < *static_cast<int*>(args[2]); ++i) {
        a[i] *= *static_cast<float*>(args[1]);
    }
}

#define CHECK(condition)                                              \
    do {                                                              \
        if (!(condition)) {                                           \
            std::printf("%d: %s failed (%s)\n", __LINE__, #condition, \
                        cudaGetErrorString(cudaPeekAtLastError()));   \
            return 1;                                                 \
        }                                                             \
    } while (0)

int main() {
    softdevRegisterKernel("_Z3addPKfS0_Pfi", add_twin);
    softdevRegisterKernel("_Z5scaleIfEvPT_S0_i", scale_twin);
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices) == cudaSuccess && devices == 8);
    CHECK(cudaSetDevice(devices) == cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 1) == cudaSuccess && properties.warpSize == 32);

    const int n = 4;
    const float in[n] = {1, 2, 3, 4};
    float out[n] = {};
    float *a, *b, *c;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc(&a, sizeof in) == cudaSuccess && cudaMalloc(&b, sizeof in) == cudaSuccess);
    CHECK(cudaMalloc(&c, sizeof in) == cudaSuccess);
    CHECK(cudaMemcpyAsync(a, in, sizeof in, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaMemcpyAsync(b, in, sizeof in, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    add<<<1, 32, 0, stream>>>(a, b, c, n);
    scale<float><<<1, 32, 0, stream>>>(c, 10.0f, n);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaMemcpyAsync(out, c, sizeof out, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(out[0] == 20 && out[3] == 80);
    add<<<1, 32>>>(c, c, c, n);  // the default stream
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(out, c, sizeof out, cudaMemcpyDefault) == cudaSuccess);
    CHECK(out[3] == 160);

    CUdevice device;  // one state below both APIs
    CUcontext context;
    CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS && cuCtxGetDevice(&device) == CUDA_SUCCESS);
    CHECK(device == 1 && cuStreamQuery(stream) == CUDA_SUCCESS);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, c) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 1);
    CHECK(cudaPointerGetAttributes(&attributes, out) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);

    std::thread([&] {
        int current = -1;
        cudaGetDevice(&current);
        if (current != 0) {
            std::printf("a new thread is on device %d\n", current);
        }
    }).join();

    cudaEvent_t start, end;
    float ms = -1;
    CHECK(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    CHECK(cudaEventRecord(start, stream) == cudaSuccess &&
          cudaEventRecord(end, stream) == cudaSuccess);
    CHECK(cudaEventSynchronize(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&ms, start, end) == cudaSuccess && ms >= 0);

    CHECK(softdevReports() == 0);
    without_twin<<<1, 1>>>();
    CHECK(softdevReports() == 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
    add<<<1, 2048, 0, stream>>>(a, b, c, n);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(std::strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
    CHECK(std::strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument") == 0);
    CHECK(cudaFree(a) == cudaSuccess && cudaFree(b) == cudaSuccess && cudaFree(c) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    std::printf("ok\n");
    return 0;
}
