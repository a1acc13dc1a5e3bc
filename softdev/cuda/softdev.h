/* SPDX-License-Identifier: Apache-2.0
 *
 * The software device's own C functions, exported by its libcuda.so.1 beside the CUDA driver API.
 * The software NCCL, tests and jobs that bring CPU kernels use them; nothing that is meant to run
 * on a real GPU does. All functions may be called from any thread. README.md has the rules and the
 * environment variables.
 */
#ifndef SOFTDEV_CUDA_SOFTDEV_H
#define SOFTDEV_CUDA_SOFTDEV_H

#include <cuda.h>
#include <stddef.h>

#define SOFTDEV_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that an operation reads (write = 0) or writes (write = 1). */
typedef struct {
    const void* ptr;
    size_t bytes;
    int write;
} softdev_access_t;

/* Puts one operation on a stream: fn(arg) runs on the stream's worker thread when all earlier work
 * of the stream, and what that waits for, is done; the stream is busy until fn returns. A result
 * other than CUDA_SUCCESS becomes the context's sticky error. done(arg) (may be NULL) is called
 * exactly once when the operation is over or dropped: also when this function returns an error,
 * and, for a captured operation, when the last graph that holds it is destroyed (fn then runs once
 * per launch of the graph). label (copied, may be NULL) names the operation in reports. The
 * accesses are copied; freed or out-of-range memory and bytes that other streams touch without an
 * order (vector clocks, no timing involved) are reported and refused. */
SOFTDEV_API CUresult softdevStreamEnqueue(CUstream stream, const char* label, CUresult (*fn)(void*),
                                          void (*done)(void*), void* arg,
                                          const softdev_access_t* accesses, size_t n);

/* CUDA_ERROR_INVALID_VALUE and a report when the range is freed, runs past the end of an
 * allocation, or is plain host memory while SOFTDEV_PAGEABLE=0. */
SOFTDEV_API CUresult softdevCheckRange(const void* ptr, size_t bytes, const char* label);

/* One line "softdev: error: [rank R] ..." on stderr, and counts it. With SOFTDEV_STRICT=off
 * neither, with =abort it ends the process. R is SOFTDEV_RANK where that is set, else the rank
 * given for the device in question: the calling thread's current one, or the one named. */
SOFTDEV_API void softdevReport(const char* format, ...) __attribute__((format(printf, 1, 2)));
SOFTDEV_API void softdevReportOn(CUdevice device, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
SOFTDEV_API unsigned long softdevReports(void);

/* The job's rank that works on a device of this process (-1: none): named in reports, so that they
 * are right where one process holds several ranks. */
SOFTDEV_API void softdevSetDeviceRank(CUdevice device, int rank);

/* The calling thread's current device, -1 for none. Allowed everywhere. */
SOFTDEV_API CUdevice softdevCurrentDevice(void);

typedef void (*softdev_kernel_t)(const unsigned grid[3], const unsigned block[3], void** args);

/* The CPU twin of a kernel, by its (mangled) name. args[i] points to a copy of the i-th parameter
 * where its size is known: from softdevRegisterKernelSized, from a launch through
 * CU_LAUNCH_PARAM_BUFFER_POINTER, or from a mangled name whose parameters are pointers and built-in
 * types; else the launch waits until the kernel has run. */
SOFTDEV_API void softdevRegisterKernel(const char* name, softdev_kernel_t fn);
SOFTDEV_API void softdevRegisterKernelSized(const char* name, softdev_kernel_t fn,
                                            const size_t* sizes, size_t count);

/* Declares what a registered kernel touches: fills at most max accesses for these arguments and
 * returns how many. */
typedef size_t (*softdev_kernel_accesses_t)(const unsigned grid[3], const unsigned block[3],
                                            void** args, softdev_access_t* out, size_t max);
SOFTDEV_API void softdevRegisterKernelAccesses(const char* name, softdev_kernel_accesses_t fn);

/* The device of a stream (NULL: of the current context); -1 for an unknown stream. */
SOFTDEV_API CUdevice softdevStreamDevice(CUstream stream);

#ifdef __cplusplus
}
#endif
#endif
