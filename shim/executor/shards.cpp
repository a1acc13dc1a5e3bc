// SPDX-License-Identifier: Apache-2.0
// What a lane carries of a reduce-scatter or an all-gather: bytes [begin, end) of every rank's
// part. They lie apart in the job's buffer, and NCCL wants them one behind the other. So they are
// copied, on the lane's stream, out of or into the lane's staging memory; NCCL does the rest with
// its own algorithms for these calls. (A group of ncclReduce or ncclBroadcast, one a root, would
// need no copy: but two ranks would send by turns, and a thousand would take a thousand launches.)
#include "shim/executor/executor.h"
#include "shim/executor/shadow.h"

namespace deft::executor {
namespace {

constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH

// Rows of a matrix in device memory.
struct Rows {
    cuda::DevicePointer first = 0;
    std::size_t pitch = 0;  // bytes from one to the next

    cuda::DevicePointer row(std::size_t r) const { return first + r * pitch; }
};

int copy_rows(const cuda::Execution& driver, const Rows& to, const Rows& from, std::size_t width,
              std::size_t height, cuda::Stream stream) noexcept {
    if (height > 1 && driver.Memcpy2DAsync != nullptr && to.pitch <= kMostPitch &&
        from.pitch <= kMostPitch) {
        cuda::Copy2d copy;
        copy.from.device = from.first;
        copy.from.pitch = from.pitch;
        copy.to.device = to.first;
        copy.to.pitch = to.pitch;
        copy.width = width;
        copy.height = height;
        if (driver.Memcpy2DAsync(&copy, stream) == cuda::kSuccess) {
            return cuda::kSuccess;
        }  // "may fail for pitches not computed by cuMemAllocPitch()"
    }
    int result = cuda::kSuccess;
    for (std::size_t r = 0; r < height && result == cuda::kSuccess; ++r) {
        result = driver.MemcpyDtoDAsync(to.row(r), from.row(r), width, stream);
    }
    return result;
}

// All rows but one.
int copy_others(const cuda::Execution& driver, const Rows& to, const Rows& from, std::size_t width,
                std::size_t height, std::size_t without, cuda::Stream stream) noexcept {
    const int result = copy_rows(driver, to, from, width, without, stream);
    const std::size_t next = without + 1;
    return result != cuda::kSuccess
               ? result
               : copy_rows(driver, {to.row(next), to.pitch}, {from.row(next), from.pitch}, width,
                           height - next, stream);
}

cuda::DevicePointer device_pointer(const void* pointer) {
    return reinterpret_cast<cuda::DevicePointer>(pointer);
}

void* host_pointer(cuda::DevicePointer pointer) {
    return reinterpret_cast<void*>(pointer);
}

}  // namespace

int Executor::carry(const Launch& step, const Call& call) noexcept {
    Lane& lane = *lanes_[step.lane];
    const std::size_t element = element_size(call.type);
    const std::size_t part = call.count * element;
    const std::size_t width = step.end - step.begin;
    const std::size_t count = width / element;
    const auto ranks = static_cast<std::size_t>(lane.nranks());
    const auto rank = static_cast<std::size_t>(lane.rank());
    const cuda::DevicePointer send = device_pointer(call.send) + step.begin;
    const cuda::DevicePointer receive = device_pointer(call.receive) + step.begin;
    const Rows staged{width == part ? 0 : shadow_->staging(step.lane), width};
    const bool whole = staged.first == 0;  // then its rows are one piece of memory already
    const bool sums = call.function == Function::ReduceScatter;
    if (sums && !whole &&
        copy_rows(driver_, staged, {send, part}, width, ranks, lane.stream()) != cuda::kSuccess) {
        return not_copied();
    }
    progress_.launched = true;
    const int result =
        sums ? nccl_.ReduceScatter(host_pointer(whole ? send : staged.first), host_pointer(receive),
                                   count, call.type, call.op, lane.comm(), lane.stream())
             : nccl_.AllGather(host_pointer(send), host_pointer(whole ? receive : staged.first),
                               count, call.type, lane.comm(), lane.stream());
    if (result != DEFT_NCCL_SUCCESS) {
        return failed("transfer", result);
    }
    if (sums || whole) {
        return DEFT_NCCL_SUCCESS;
    }
    const Rows gathered{receive, part};
    int copied = copy_others(driver_, gathered, staged, width, ranks, rank, lane.stream());
    if (copied == cuda::kSuccess && gathered.row(rank) != send) {
        copied = driver_.MemcpyDtoDAsync(gathered.row(rank), send, width, lane.stream());
    }
    return copied == cuda::kSuccess ? DEFT_NCCL_SUCCESS : not_copied();
}

// Where the other ranks are in transfers of this call already, and this one's result is not whole,
// the job has to know: nothing can be forwarded any more.
int Executor::not_copied() noexcept {
    const int result = refused("copy on a lane");
    return progress_.launched ? failed("copy on a lane", DEFT_NCCL_UNHANDLED_CUDA_ERROR) : result;
}

}  // namespace deft::executor
