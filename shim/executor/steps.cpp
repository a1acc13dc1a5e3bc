// SPDX-License-Identifier: Apache-2.0
// The steps of one gradient call: take the gradient in, launch transfers, deliver sums.
#include <algorithm>
#include <span>

#include "planner/convergence.h"
#include "shim/executor/counters.h"
#include "shim/executor/lane_times.h"
#include "shim/executor/sampler.h"
#include "shim/executor/shadow.h"

namespace deft::executor {
namespace {

cuda::DevicePointer device_pointer(const void* pointer, std::uint64_t offset) {
    return reinterpret_cast<cuda::DevicePointer>(pointer) + offset;
}

void* host_pointer(cuda::DevicePointer pointer) {
    return reinterpret_cast<void*>(pointer);
}

// Of the rest of a call's pieces the first is the last on its lane that the caller's buffer gets.
bool ends_direct(std::span<const Launch> rest) {
    const Launch& step = rest.front();
    return step.to_caller && std::none_of(rest.begin() + 1, rest.end(), [&](const Launch& other) {
               return other.to_caller && other.lane == step.lane;
           });
}

}  // namespace

int Executor::accumulate(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    for (std::uint32_t i = action.accumulate; i < action.accumulate_end; ++i) {
        const Accumulate& step = script_.accumulates[i];
        const Region& region = script_.regions[script_.slots[step.slot].region];
        const Shape& shape = script_.shapes[region.bucket];
        Shadow::Contents& slot = shadow_->slot(step.slot);
        const std::uint64_t bytes = region.end - region.begin;
        const cuda::DevicePointer from = device_pointer(call.send, region.begin);
        const cuda::DevicePointer to = shadow_->address(step.slot);
        int result = cuda::kSuccess;
        if (slot.state != SlotState::Filling) {
            if (slot.state == SlotState::Sent) {
                // Never delivered: the lanes may still be at it.
                for (std::uint32_t l = 0; l < script_.lanes; ++l) {
                    if (((slot.carried >> l) & 1) != 0 && result == cuda::kSuccess) {
                        result = driver_.StreamWaitEvent(stream, shadow_->arrived(step.slot, l), 0);
                    }
                }
                Counters::add(counters_->dropped);
            }
            slot = {SlotState::Filling, 1, 0};
            if (result == cuda::kSuccess) {
                result = driver_.MemcpyDtoDAsync(to, from, bytes, stream);
            }
        } else {
            double factor = 1;
            if (script_.residual && !(step.last && region.whole)) {
                factor = planner::covap_coefficient(script_.interval,
                                                    options_.first_iteration + running_);
            }
            Element element = Element::F32;
            element_of(shape.type, element);
            ++slot.count;
            result = shadow_->kernels().accumulate(element, to, from, factor,
                                                   bytes / element_size(shape.type), stream);
        }
        if (result != cuda::kSuccess) {
            return refused("copy");
        }
    }
    return DEFT_NCCL_SUCCESS;
}

int Executor::launch(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    std::uint64_t direct = 0;  // lanes that wrote the caller's buffer in this call
    int result = DEFT_NCCL_SUCCESS;
    // From then on the slots hold what the plan says.
    const std::uint64_t settled = script_.period + script_.max_delay + std::uint64_t{1};
    if (times_ != nullptr && running_ >= settled) {
        times_->begin(static_cast<std::size_t>(&action - script_.actions.data()));
    }
    for (std::uint32_t i = action.launch; i < action.launch_end && result == DEFT_NCCL_SUCCESS;
         ++i) {
        const Launch& step = script_.launches[i];
        result = launch(step, call, direct);
        // Before what the call sends late on this lane: its stream does not wait for that.
        if (result == DEFT_NCCL_SUCCESS && ends_direct({&step, action.launch_end - i}) &&
            driver_.driver->EventRecord(shadow_->passed(step.lane), lanes_[step.lane]->stream()) !=
                cuda::kSuccess) {
            refused("event on a lane");
            progress_.untold = true;
        }
    }
    if (times_ != nullptr) {
        times_->end(streams_);
    }
    if (progress_.untold && result == DEFT_NCCL_SUCCESS) {
        result = kForward;
    }
    for (std::uint32_t l = 0; l < script_.lanes && result != DEFT_NCCL_SUCCESS; ++l) {
        if (((direct >> l) & 1) != 0) {
            // Nothing is delivered any more; but some lanes may be at the caller's buffer.
            driver_.driver->EventRecord(shadow_->passed(l), lanes_[l]->stream());
            driver_.StreamWaitEvent(stream, shadow_->passed(l), 0);
        }
    }
    return result;
}

int Executor::launch(const Launch& step, const Call& call, std::uint64_t& direct) noexcept {
    const Region& region = script_.regions[step.region];
    const Call& source = script_.layers ? called_[region.bucket] : call;
    Lane& lane = *lanes_[step.lane];
    Transfer transfer;
    if (step.slot == kDirect) {
        transfer.from = host_pointer(device_pointer(source.send, step.begin));
    } else {
        Shadow::Contents& slot = shadow_->slot(step.slot);
        if (slot.state != SlotState::Filling && slot.state != SlotState::Sent) {
            return DEFT_NCCL_SUCCESS;  // its gradients are older than the executor
        }
        slot.state = SlotState::Sent;
        transfer.merged = slot.count;
        slot.carried |= std::uint64_t{1} << step.lane;
        transfer.from = host_pointer(shadow_->address(step.slot) + (step.begin - region.begin));
        transfer.to = const_cast<void*>(transfer.from);
    }
    if (step.to_caller) {
        transfer.to = host_pointer(device_pointer(source.receive, step.begin));
        direct |= std::uint64_t{1} << step.lane;
    }
    if (driver_.StreamWaitEvent(lane.stream(), shadow_->ready(region.bucket), 0) !=
        cuda::kSuccess) {
        const int result = refused("wait on a lane");
        // The others are in the first transfers of this call already, and go on with the rest.
        if (!progress_.launched || !happened(shadow_->ready(region.bucket))) {
            return result;
        }
    }
    if (times_ != nullptr) {
        times_->enter(step.lane, lane.stream());
    }
    const Shape& shape = script_.shapes[region.bucket];
    const int result = moves_shards(shape.function) ? carry(step, call)
                       : step.halves()              ? carry_half(step, shape, transfer)
                                                    : reduce(step, shape, transfer);
    // Behind every piece, and after an error too: the memory is freed behind this event, and the
    // plan may end before the slot's last piece is launched.
    if (step.slot != kDirect &&
        driver_.driver->EventRecord(shadow_->arrived(step.slot, step.lane), lane.stream()) !=
            cuda::kSuccess &&
        result == DEFT_NCCL_SUCCESS) {
        refused("event on a lane");
        progress_.untold = true;
    }
    if (result != DEFT_NCCL_SUCCESS) {
        return result;
    }
    Counters::add(counters_->launched);
    Counters::add(counters_->launched_bytes, step.bytes());
    if (step.lane < ExecutorStats::kLanes) {
        Counters::add(counters_->lane_bytes[step.lane], step.bytes());
    }
    return script_.layers ? note_sent(step, region.bucket) : DEFT_NCCL_SUCCESS;
}

// The transfer itself, measured while the iteration is sampled.
int Executor::reduce(const Launch& step, const Shape& shape, const Transfer& transfer) noexcept {
    Lane& lane = *lanes_[step.lane];
    const std::uint64_t bytes = step.end - step.begin;
    const std::uint64_t count = bytes / element_size(shape.type);
    Element element = Element::F32;
    bool measured = sampling_ && element_of(shape.type, element);
    if (measured &&
        sampler_->before(step.lane, lane.stream(), element, device_pointer(transfer.from, 0), count,
                         bytes, transfer.merged) != cuda::kSuccess) {
        measured = false;
        stop_sampling();
    }
    progress_.launched = true;
    const int result = nccl_.AllReduce(transfer.from, transfer.to, count, shape.type, shape.op,
                                       lane.comm(), lane.stream());
    if (result != DEFT_NCCL_SUCCESS) {
        return failed(step.lane > 0 ? "transfer over a second network" : "transfer", result);
    }
    if (measured &&
        sampler_->after(static_cast<std::size_t>(&step - script_.launches.data()), step.lane,
                        lane.stream(), element, device_pointer(transfer.to, 0), count,
                        bytes) != cuda::kSuccess) {
        stop_sampling();
    }
    return result;
}

// In the caller's receive buffer, where each rank's part of the sum has its place.
int Executor::carry_half(const Launch& step, const Shape& shape,
                         const Transfer& transfer) noexcept {
    Lane& lane = *lanes_[step.lane];
    const auto ranks = static_cast<std::uint64_t>(lane.nranks());
    const std::uint64_t part = (step.end - step.begin) / ranks;
    const std::uint64_t count = part / element_size(shape.type);
    void* const own =
        host_pointer(device_pointer(transfer.to, static_cast<std::uint64_t>(lane.rank()) * part));
    progress_.launched = true;
    const bool first = step.operation == planner::Operation::ReduceScatter;
    const int result =
        first ? nccl_.ReduceScatter(transfer.from, own, count, shape.type, shape.op, lane.comm(),
                                    lane.stream())
              : nccl_.AllGather(own, transfer.to, count, shape.type, lane.comm(), lane.stream());
    return result == DEFT_NCCL_SUCCESS ? result
                                       : failed(first ? "reduce-scatter" : "all-gather", result);
}

// From where the call has come to: after an error it may go on, on another stream.
int Executor::deliver(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    std::uint64_t waited = 0;  // lanes whose work of this very call the stream waits for
    for (std::uint32_t& i = progress_.delivered; i < action.deliver_end; ++i) {
        const Deliver& step = script_.deliveries[i];
        if (step.in_place) {
            if (!script_.layers && !wait_for_lanes(step.lanes & ~waited, stream)) {
                return refused("wait for a lane");
            }
            waited |= step.lanes;
            if (step.slot != kDirect) {
                shadow_->slot(step.slot) = {};
            }
            Counters::add(counters_->delivered);
            progress_.sums = true;
        } else if (shadow_->slot(step.slot).state == SlotState::Sent) {
            if (deliver_slot(step, call, stream) != cuda::kSuccess) {
                return refused("delivery");
            }
            progress_.sums = true;
        } else {
            // Its gradients are older than the executor.
            const Region& region = script_.regions[step.region];
            if (!step.add &&
                driver_.MemsetD8Async(device_pointer(call.receive, region.begin), 0,
                                      region.end - region.begin, stream) != cuda::kSuccess) {
                return refused("delivery");
            }
            progress_.zeros = true;
        }
    }
    for (std::uint32_t& i = progress_.zeroed; i < action.zero_end; ++i) {
        const Zero& step = script_.zeros[i];
        if (driver_.MemsetD8Async(device_pointer(call.receive, step.begin), 0,
                                  step.end - step.begin, stream) != cuda::kSuccess) {
            return refused("delivery");
        }
        progress_.zeros = true;
    }
    if (progress_.zeros) {
        Counters::add(counters_->zeroed);
        Counters::add(counters_->empty, progress_.sums ? 0 : 1);
    }
    return DEFT_NCCL_SUCCESS;
}

// For what they have done of this call.
bool Executor::wait_for_lanes(std::uint64_t lanes, cuda::Stream stream) noexcept {
    for (std::uint32_t l = 0; l < script_.lanes; ++l) {
        if ((lanes >> l & 1) != 0 &&
            driver_.StreamWaitEvent(stream, shadow_->passed(l), 0) != cuda::kSuccess) {
            return false;
        }
    }
    return true;
}

// What the sum in this slot, and those before it that the script has kept, are multiplied by.
Factors Executor::factors_for(const Deliver& step) const noexcept {
    if (!step.predict && options_.prediction.kind != PredictionKind::Damp) {
        return {};
    }
    const auto count = [&](std::uint32_t s) {
        const bool kept = step.predict && s != kDirect && s != step.slot &&
                          shadow_->slot(s).state == SlotState::Delivered;
        return kept ? shadow_->slot(s).count : 0U;
    };
    return factors(options_.prediction, step.delay, shadow_->slot(step.slot).count,
                   count(step.previous), count(step.before_previous));
}

int Executor::deliver_slot(const Deliver& step, const Call& call, cuda::Stream stream) noexcept {
    const Region& region = script_.regions[step.region];
    const Shape& shape = script_.shapes[region.bucket];
    Shadow::Contents& slot = shadow_->slot(step.slot);
    for (std::uint32_t l = 0; l < script_.lanes; ++l) {
        if (((step.lanes >> l) & 1) != 0) {
            const int result = driver_.StreamWaitEvent(stream, shadow_->arrived(step.slot, l), 0);
            if (result != cuda::kSuccess) {
                return result;
            }
        }
    }
    const std::uint64_t bytes = region.end - region.begin;
    const cuda::DevicePointer to = device_pointer(call.receive, region.begin);
    const cuda::DevicePointer from = shadow_->address(step.slot);
    const Factors f = factors_for(step);
    const bool plain = f.now == 1 && f.previous == 0 && f.before_previous == 0;
    int result = cuda::kSuccess;
    if (plain && !step.add) {
        result = driver_.MemcpyDtoDAsync(to, from, bytes, stream);
    } else {
        Element element = Element::F32;
        element_of(shape.type, element);
        result = shadow_->kernels().combine(
            element, to, from, f.previous != 0 ? shadow_->address(step.previous) : 0,
            f.before_previous != 0 ? shadow_->address(step.before_previous) : 0, f.now, f.previous,
            f.before_previous, bytes / element_size(shape.type), step.add, stream);
    }
    if (result != cuda::kSuccess) {
        return result;
    }
    // Kept as long as the script keeps slots for it: until it is written again.
    slot.state = region.predicted ? SlotState::Delivered : SlotState::Empty;
    Counters::add(counters_->delivered);
    if (!plain) {
        Counters::add(counters_->predicted);
    }
    return cuda::kSuccess;
}

}  // namespace deft::executor
