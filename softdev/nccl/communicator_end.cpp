// SPDX-License-Identifier: Apache-2.0
// How a communicator ends: finalize, destroy, abort, revoke; or is suspended for a while.
#include <algorithm>
#include <chrono>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/communicator.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kGatherSuspend = 4ull << 32;  // next to those of communicator_init.cpp

}  // namespace

// Until no operation runs and (unless operations_only) no other thread is inside a call. As in NCCL
// this waits for graphs that hold captured operations to be destroyed, but here not for ever.
void Communicator::wait_idle(bool operations_only) {
    const auto until = Clock::now() + limits.stall;
    for (;;) {
        const uint64_t seen = idle.seen();
        const int held = captured_.load();
        const bool only_graphs = running_.load() <= held && replaying_.load() == 0 &&
                                 (operations_only || users.load() == 0);
        if (only_graphs && (held == 0 || graphs_waited_for_ || health() == Health::kAborted)) {
            return;
        }
        if (only_graphs && Clock::now() >= until) {
            graphs_waited_for_ = true;
            softdevReportOn(device,
                            "nccl: %s ends while %d captured operations are in graphs that were "
                            "not destroyed",
                            name().c_str(), held);
            return;
        }
        idle.sleep(seen, 50ms);
    }
}

void Communicator::finalize() {
    // Every wait inside ends by itself (deadline, failure), so this one has no limit of its own.
    wait_idle(true);
    std::vector<Connection*> mine;
    {
        std::lock_guard lock(connections_mutex_);
        for (auto& [wish, connection] : connections_) {
            if (connection->comm != nullptr) {
                mine.push_back(connection.get());
            }
        }
    }
    const auto until = Clock::now() + limits.stall;
    while (!mine.empty() && !Progress::drained(mine) && health() == Health::kGood) {
        const uint64_t seen = resources_->progress.moved().seen();
        if (Clock::now() >= until) {
            fail(ncclRemoteError,
                 "sends were not completed by the network before the communicator's end", true);
            break;
        }
        if (!Progress::drained(mine)) {
            resources_->progress.moved().sleep(seen, 20ms);
        }
    }
    finalized_.store(true);
}

void Communicator::abort() {
    abort_.store(true);
    ring_all();
}

void Communicator::reclaim() {
    shut_down(End::kAbort);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    cuCtxSynchronize_v2(context);  // which may have been destroyed
    cuThreadExchangeStreamCaptureMode(&mode);
}

void Communicator::revoke() {
    revoked_.store(true);
    ring_all();
    wait_idle(true);
    // As NCCL's, the progress thread sees the flag: what its operations have left is not waited
    // for.
    std::vector<Connection*> mine;
    {
        std::lock_guard lock(connections_mutex_);
        for (auto& [wish, connection] : connections_) {
            mine.push_back(connection.get());
        }
    }
    if (resources_) {
        resources_->progress.remove(mine);
    }
}

void Communicator::suspend() {
    log_set_device(device);
    cuCtxSetCurrent(context);
    cuCtxSynchronize();
    control_->all_gather(kGatherSuspend + 2 * suspensions_.fetch_add(1), "", patience(),
                         "ncclCommSuspend");
    suspended_.store(true);
}

void Communicator::resume() {
    control_->all_gather(kGatherSuspend + 2 * suspensions_.load() - 1, "", patience(),
                         "ncclCommResume");
    suspended_.store(false);
}

size_t Communicator::buffer_bytes() {
    std::lock_guard lock(connections_mutex_);
    size_t bytes = 0;
    for (const auto& [wish, connection] : connections_) {
        bytes += connection->bytes();
    }
    return bytes;
}

void Communicator::close_connections() {
    std::vector<Connection*> mine;
    std::map<Wish, std::unique_ptr<Connection>> taken;
    {
        std::lock_guard lock(connections_mutex_);
        taken.swap(connections_);
    }
    for (auto& [wish, connection] : taken) {
        mine.push_back(connection.get());
    }
    std::sort(mine.begin(), mine.end(),
              [](const Connection* a, const Connection* b) { return a->number < b->number; });
    if (resources_ && !mine.empty()) {
        resources_->progress.remove(mine);
        resources_->service.close(mine);
    }
}

void Communicator::shut_down(End how) {
    std::lock_guard once(shut_down_mutex_);
    if (ended_.load()) {
        return;
    }
    if (how == End::kDestroy) {
        if (!finalized_.load() && !revoked_.load()) {
            finalize();
        }
        leaving_.store(true);
    } else {
        abort();
    }
    wait_idle(false);
    leaving_.store(true);
    if (control_) {
        control_->send_to_all(Letter::kBye, 0, how == End::kAbort ? "abort" : "destroy");
    }
    close_connections();
    // The control thread first: it reaches the resources when a peer goes.
    if (control_) {
        control_->stop();
    }
    std::shared_ptr<Resources> last;
    {
        std::lock_guard lock(parts_mutex_);
        last.swap(resources_);
    }
    last.reset();  // perhaps the last user: joins threads, so not under the lock
    if (last_event != nullptr) {
        cuEventDestroy(last_event);
        last_event = nullptr;
    }
    ended_.store(true);
    log_info(kSubsysInit, "comm %p rank %d nranks %d cudaDev %d - %s COMPLETE",
             static_cast<void*>(handle), rank, nranks, device,
             how == End::kAbort ? "Abort" : "Destroy");
}

}  // namespace softdev::nccl
