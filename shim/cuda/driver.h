// SPDX-License-Identifier: Apache-2.0
// The CUDA driver API, as much as the shim needs, found in the process at run time. The driver and
// not the runtime: its handles are the same for every cudart, static or not, and an error here is
// never seen by the job's cudaGetLastError.
#pragma once

#include <cstdint>

#include "deft/abi/nccl.h"

namespace deft::cuda {

using Event = struct OpaqueEvent*;      // CUevent
using Context = struct OpaqueContext*;  // CUcontext
using Stream = deft_cuda_stream_t;      // CUstream

enum : int {
    kSuccess = 0,
    kNotReady = 600,
    kStreamCaptureImplicit = 906,  // asked about the legacy stream while another one captures
    kStreamNonBlocking = 1,
    kCaptureModeRelaxed = 2,
};

// Entry points; all are set in a Driver that get() returns.
struct Driver {
    int (*DeviceGet)(int* device, int ordinal) = nullptr;
    int (*DevicePrimaryCtxRetain)(Context* context, int device) = nullptr;
    int (*CtxGetCurrent)(Context* context) = nullptr;
    int (*CtxGetDevice)(int* device) = nullptr;
    int (*CtxPushCurrent)(Context context) = nullptr;
    int (*CtxPopCurrent)(Context* context) = nullptr;
    int (*StreamCreate)(Stream* stream, unsigned flags) = nullptr;
    int (*StreamIsCapturing)(Stream stream, int* status) = nullptr;
    int (*EventCreate)(Event* event, unsigned flags) = nullptr;
    int (*EventRecord)(Event event, Stream stream) = nullptr;
    int (*EventQuery)(Event event) = nullptr;
    int (*EventElapsedTime)(float* milliseconds, Event start, Event end) = nullptr;
    int (*ThreadExchangeStreamCaptureMode)(int* mode) = nullptr;

    // The driver that is loaded in this process, or null. Never loads one: a job without CUDA has
    // no need of it, and a process that has a communicator has it already. Any thread; asks the
    // loader until it is found, so it is not for the hot path.
    static const Driver* get() noexcept;
    // What get() has found so far. One load.
    static const Driver* found() noexcept;
};

// The ordinal (with every driver that is what a CUdevice is) of this thread's current device; -1 if
// it has none, or there is no driver. Any thread; not for the hot path.
int current_device() noexcept;

// Makes a context current for a scope and restores what was there.
class Current {
public:
    Current(const Driver& driver, Context context) noexcept;
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    explicit operator bool() const { return ok_; }

private:
    const Driver& driver_;
    bool pushed_ = false;
    bool ok_ = false;
};

// While one lives, this thread's calls do not disturb a capture that is under way on another
// stream.
class Relaxed {
public:
    explicit Relaxed(const Driver& driver) noexcept : driver_(driver) {
        driver_.ThreadExchangeStreamCaptureMode(&mode_);
    }
    ~Relaxed() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
    Relaxed(const Relaxed&) = delete;

private:
    const Driver& driver_;
    int mode_ = kCaptureModeRelaxed;
};

// True if work may be put on the stream beside the job's: it is known not to be captured.
// `captured` tells whether it is.
bool recordable(const Driver& driver, Stream stream, bool& captured) noexcept;

}  // namespace deft::cuda
