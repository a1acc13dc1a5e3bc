// SPDX-License-Identifier: Apache-2.0
// The steps of one gradient call: take the gradient in, launch transfers, deliver sums.
#include "shim/executor/counters.h"
#include "shim/executor/sampler.h"
#include "shim/executor/shadow.h"
#include "shim/planner/convergence.h"

namespace deft::executor {
namespace {

cuda::DevicePointer device_pointer(const void* pointer, std::uint64_t offset) {
    return reinterpret_cast<cuda::DevicePointer>(pointer) + offset;
}

void* host_pointer(cuda::DevicePointer pointer) {
    return reinterpret_cast<void*>(pointer);
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
            return failed("copy", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
        }
    }
    return DEFT_NCCL_SUCCESS;
}

int Executor::launch(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    std::uint64_t direct = 0;  // lanes that wrote the caller's buffer in this call
    int result = DEFT_NCCL_SUCCESS;
    for (std::uint32_t i = action.launch; i < action.launch_end && result == DEFT_NCCL_SUCCESS;
         ++i) {
        result = launch(script_.launches[i], call, direct);
    }
    for (std::uint32_t l = 0; l < script_.lanes; ++l) {
        if (((direct >> l) & 1) == 0) {
            continue;
        }
        const bool recorded =
            driver_.driver->EventRecord(shadow_->passed(l), lanes_[l]->stream()) == cuda::kSuccess;
        if (result != DEFT_NCCL_SUCCESS) {
            // Nothing is delivered any more; but some lanes may be at the caller's buffer.
            driver_.StreamWaitEvent(stream, shadow_->passed(l), 0);
        } else if (!recorded) {
            result = failed("event", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
        }
    }
    return result;
}

int Executor::launch(const Launch& step, const Call& call, std::uint64_t& direct) noexcept {
    const Region& region = script_.regions[step.region];
    const Shape& shape = script_.shapes[region.bucket];
    Lane& lane = *lanes_[step.lane];
    const void* from = nullptr;
    void* to = nullptr;
    std::uint32_t merged = 1;
    if (step.slot == kDirect) {
        from = host_pointer(device_pointer(call.send, step.begin));
    } else {
        Shadow::Contents& slot = shadow_->slot(step.slot);
        if (slot.state != SlotState::Filling && slot.state != SlotState::Sent) {
            return DEFT_NCCL_SUCCESS;  // its gradients are older than the executor
        }
        slot.state = SlotState::Sent;
        merged = slot.count;
        slot.carried |= std::uint64_t{1} << step.lane;
        from = host_pointer(shadow_->address(step.slot) + (step.begin - region.begin));
        to = const_cast<void*>(from);
    }
    if (step.to_caller) {
        to = host_pointer(device_pointer(call.receive, step.begin));
        direct |= std::uint64_t{1} << step.lane;
    }
    if (driver_.StreamWaitEvent(lane.stream(), shadow_->ready(region.bucket), 0) !=
        cuda::kSuccess) {
        return failed("event", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    const std::uint64_t bytes = step.end - step.begin;
    const std::uint64_t count = bytes / element_size(shape.type);
    Element element = Element::F32;
    const bool measured = sampler_ != nullptr && element_of(shape.type, element);
    if (measured && sampler_->before(step.lane, lane.stream(), element, device_pointer(from, 0),
                                     count, bytes, merged) != cuda::kSuccess) {
        return failed("norm", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    const char* what = "transfer";
    int result = nccl_.AllReduce(from, to, count, shape.type, shape.op, lane.comm(), lane.stream());
    if (measured && result == DEFT_NCCL_SUCCESS &&
        sampler_->after(static_cast<std::size_t>(&step - script_.launches.data()), step.lane,
                        lane.stream(), element, device_pointer(to, 0), count,
                        bytes) != cuda::kSuccess) {
        what = "norm";
        result = DEFT_NCCL_UNHANDLED_CUDA_ERROR;
    }
    // Behind every piece, and after an error too: the memory is freed behind this event, and the
    // plan may end before the slot's last piece is launched.
    if (step.slot != kDirect &&
        driver_.driver->EventRecord(shadow_->arrived(step.slot, step.lane), lane.stream()) !=
            cuda::kSuccess &&
        result == DEFT_NCCL_SUCCESS) {
        what = "event";
        result = DEFT_NCCL_UNHANDLED_CUDA_ERROR;
    }
    if (result != DEFT_NCCL_SUCCESS) {
        return failed(what, result);
    }
    Counters::add(counters_->launched);
    Counters::add(counters_->launched_bytes, bytes);
    if (step.lane < ExecutorStats::kLanes) {
        Counters::add(counters_->lane_bytes[step.lane], bytes);
    }
    return DEFT_NCCL_SUCCESS;
}

int Executor::deliver(const Action& action, const Call& call, cuda::Stream stream) noexcept {
    std::uint64_t waited = 0;  // lanes whose work of this very call the stream waits for
    bool zeros = false;
    bool sums = false;
    for (std::uint32_t i = action.deliver; i < action.deliver_end; ++i) {
        const Deliver& step = script_.deliveries[i];
        int result = cuda::kSuccess;
        if (step.in_place) {
            for (std::uint32_t l = 0; l < script_.lanes; ++l) {
                if (((step.lanes & ~waited) >> l & 1) != 0 && result == cuda::kSuccess) {
                    result = driver_.StreamWaitEvent(stream, shadow_->passed(l), 0);
                }
            }
            waited |= step.lanes;
            if (step.slot != kDirect) {
                shadow_->slot(step.slot) = {};
            }
            Counters::add(counters_->delivered);
            sums = true;
        } else if (shadow_->slot(step.slot).state == SlotState::Sent) {
            result = deliver_slot(step, call, stream);
            sums = true;
        } else {
            // Its gradients are older than the executor.
            const Region& region = script_.regions[step.region];
            if (!step.add) {
                result = driver_.MemsetD8Async(device_pointer(call.receive, region.begin), 0,
                                               region.end - region.begin, stream);
            }
            zeros = true;
        }
        if (result != cuda::kSuccess) {
            return failed("delivery", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
        }
    }
    for (std::uint32_t i = action.zero; i < action.zero_end; ++i) {
        const Zero& step = script_.zeros[i];
        if (driver_.MemsetD8Async(device_pointer(call.receive, step.begin), 0,
                                  step.end - step.begin, stream) != cuda::kSuccess) {
            return failed("delivery", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
        }
        zeros = true;
    }
    if (zeros) {
        Counters::add(counters_->zeroed);
        Counters::add(counters_->empty, sums ? 0 : 1);
    }
    return DEFT_NCCL_SUCCESS;
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
    Factors f;
    if (step.predict || options_.prediction.kind == PredictionKind::Damp) {
        const auto count = [&](std::uint32_t s) {
            const bool kept = step.predict && s != kDirect && s != step.slot &&
                              shadow_->slot(s).state == SlotState::Delivered;
            return kept ? shadow_->slot(s).count : 0U;
        };
        f = factors(options_.prediction, step.delay, slot.count, count(step.previous),
                    count(step.before_previous));
    }
    // Kept as long as the script keeps slots for it: until it is written again.
    slot.state = region.predicted ? SlotState::Delivered : SlotState::Empty;
    Counters::add(counters_->delivered);
    const bool plain = f.now == 1 && f.previous == 0 && f.before_previous == 0;
    if (plain && !step.add) {
        return driver_.MemcpyDtoDAsync(to, from, bytes, stream);
    }
    if (!plain) {
        Counters::add(counters_->predicted);
    }
    Element element = Element::F32;
    element_of(shape.type, element);
    return shadow_->kernels().combine(
        element, to, from, f.previous != 0 ? shadow_->address(step.previous) : 0,
        f.before_previous != 0 ? shadow_->address(step.before_previous) : 0, f.now, f.previous,
        f.before_previous, bytes / element_size(shape.type), step.add, stream);
}

}  // namespace deft::executor
