// SPDX-License-Identifier: Apache-2.0
// Finds a tuner as NCCL does, and asks it. NCCL_TUNER_PLUGIN names a library; unset, there may be a
// libnccl-tuner.so; else the network plugin's library is searched. SOFTDEV_NCCL_VERSION says which
// table versions are looked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "deft/abi/tuner.h"

namespace softdev::net {

struct TunerTable;

// What a tuner is asked about one call.
struct TunerQuestion {
    int function = 0;
    size_t bytes = 0;
    int pipelined = 1;
    int registered = 0;
    float costs[DEFT_TUNER_ALGORITHMS][DEFT_TUNER_PROTOCOLS] = {};
    int channels = 0;  // 0: NCCL's number
};

// One communicator's hold on the process's tuner; empty where there is none. Movable.
class CommTuner {
public:
    CommTuner() = default;
    CommTuner(CommTuner&& other) noexcept;
    CommTuner& operator=(CommTuner&& other) noexcept;
    ~CommTuner();

    // After the communicator's network has been opened. The result of init.
    static int open(uint64_t comm_id, size_t ranks, size_t nodes, CommTuner* out);

    explicit operator bool() const { return table_ != nullptr; }
    // Changes the costs and the number of channels. Returns what the tuner did.
    int ask(TunerQuestion& question) const;

private:
    void release();

    std::shared_ptr<const TunerTable> table_;
    void* context_ = nullptr;
};

}  // namespace softdev::net
