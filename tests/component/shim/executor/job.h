// SPDX-License-Identifier: Apache-2.0
// A small training job on the software device: ranks as threads, lanes, and an executor each.
#pragma once

#include <mutex>

#include "perf/executor/plans.h"
#include "shim/executor/executor.h"
#include "softdev/cuda/softdev.h"
#include "tests/component/softdev/nccl/ranks.h"
#include "tests/component/softdev/nccl/values.h"

namespace deft::executor::test {

using softdev::test::Device;
using softdev::test::Rank;

template <typename To, typename From>
To as(From function) {
    return reinterpret_cast<To>(reinterpret_cast<void*>(function));
}

inline Nccl soft_nccl() {
    Nccl nccl;
    nccl.CommInitRank = as<decltype(nccl.CommInitRank)>(&ncclCommInitRank);
    nccl.CommInitRankConfig = as<decltype(nccl.CommInitRankConfig)>(&ncclCommInitRankConfig);
    nccl.CommDestroy = as<decltype(nccl.CommDestroy)>(&ncclCommDestroy);
    nccl.CommAbort = as<decltype(nccl.CommAbort)>(&ncclCommAbort);
    nccl.CommGetAsyncError = as<decltype(nccl.CommGetAsyncError)>(&ncclCommGetAsyncError);
    nccl.AllReduce = as<decltype(nccl.AllReduce)>(&ncclAllReduce);
    nccl.ReduceScatter = as<decltype(nccl.ReduceScatter)>(&ncclReduceScatter);
    nccl.AllGather = as<decltype(nccl.AllGather)>(&ncclAllGather);
    nccl.GetErrorString = as<decltype(nccl.GetErrorString)>(&ncclGetErrorString);
    ncclGetVersion(&nccl.version);
    return nccl;
}

// Ids of the lanes, made once for all ranks.
class Ids {
public:
    explicit Ids(std::size_t lanes) : ids_(lanes) {
        for (ncclUniqueId& id : ids_) {
            EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
        }
    }
    deft_nccl_unique_id_t operator[](std::size_t lane) const {
        deft_nccl_unique_id_t id;
        std::memcpy(&id, &ids_[lane], sizeof id);
        return id;
    }
    std::size_t size() const { return ids_.size(); }

private:
    std::vector<ncclUniqueId> ids_;
};

class Lanes {
public:
    Lanes(const Rank& self, const Ids& ids, LaneConfig config = {}) {
        config.warm_up_bytes = 64 * 1024;
        for (std::size_t l = 0; l < ids.size(); ++l) {
            auto lane = std::make_unique<Lane>(soft_nccl(), *cuda::Execution::get(), self.rank);
            std::string problem;
            EXPECT_TRUE(lane->open(ids[l], self.nranks, self.rank, config, problem)) << problem;
            LaneSpeed speed;
            EXPECT_TRUE(lane->try_now({{}, 64 * 1024, false}, speed, problem)) << problem;
            pointers.push_back(lane.get());
            own_.push_back(std::move(lane));
        }
    }
    ~Lanes() {
        for (auto& lane : own_) {
            lane->close();
        }
    }
    std::vector<Lane*> pointers;

private:
    std::vector<std::unique_ptr<Lane>> own_;
};

inline std::vector<Shape> shapes_of(const std::vector<std::uint64_t>& counts,
                                    ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
    std::vector<Shape> shapes;
    for (const std::uint64_t count : counts) {
        shapes.push_back({count, type, op});
    }
    return shapes;
}

inline std::vector<std::uint64_t> bytes_of(const std::vector<Shape>& shapes) {
    std::vector<std::uint64_t> bytes;
    for (const Shape& shape : shapes) {
        bytes.push_back(shape.bytes());
    }
    return bytes;
}

// A gradient that every type holds exactly, with sums over 4 ranks and 4 iterations that it holds
// too: results do not depend on the order of summation.
inline double gradient(int rank, std::int64_t iteration, std::uint32_t bucket, std::uint64_t i) {
    return static_cast<double>((i * 7 + static_cast<std::uint64_t>(rank) * 3 + bucket * 5 +
                                static_cast<std::uint64_t>(iteration) * 11 + i / 97) %
                               5) -
           1;
}

inline std::vector<std::byte> local_gradient(const Shape& shape, int rank, std::int64_t t,
                                             std::uint32_t bucket) {
    const auto type = static_cast<ncclDataType_t>(shape.type);
    const std::size_t size = softdev::test::size_of(type);
    std::vector<std::byte> bytes(shape.bytes());
    for (std::uint64_t i = 0; i < shape.count; ++i) {
        softdev::test::put(type, bytes.data() + i * size, gradient(rank, t, bucket, i));
    }
    return bytes;
}

inline double reduced(int nranks, std::int64_t t, std::uint32_t bucket, std::uint64_t i, int op) {
    double sum = 0;
    for (int r = 0; r < nranks; ++r) {
        sum += gradient(r, t, bucket, i);
    }
    return op == ncclAvg ? sum / nranks : sum;
}

// What the plan must deliver, as doubles.
inline double expected(const Plan& plan, const Shape& shape, int nranks, std::int64_t t,
                       std::uint32_t bucket, std::uint64_t i) {
    double sum = 0;
    const std::uint64_t at = i * softdev::test::size_of(static_cast<ncclDataType_t>(shape.type));
    for (const std::int64_t from : delivered_iterations(plan, t, bucket, at)) {
        sum += reduced(nranks, from, bucket, i, shape.op);
    }
    return sum;
}

inline void expect_delivered(const std::vector<std::byte>& got, const Shape& shape,
                             const std::function<double(std::uint64_t)>& wanted,
                             const std::string& what) {
    const auto type = static_cast<ncclDataType_t>(shape.type);
    const std::size_t size = softdev::test::size_of(type);
    for (std::uint64_t i = 0; i < shape.count; ++i) {
        const double is = softdev::test::get(type, got.data() + i * size);
        if (is != wanted(i)) {
            ADD_FAILURE() << what << ": element " << i << " of " << shape.count << " is " << is
                          << ", not " << wanted(i);
            return;
        }
    }
}

// Makes one gradient call as the hook would: through the executor, or forwarded.
inline int hooked_all_reduce(Executor& executor, const Rank& self, CUstream stream,
                             const void* send, void* receive, const Shape& shape,
                             std::uint64_t mark = 0) {
    Call call;
    call.mark = mark;
    call.count = shape.count;
    call.type = shape.type;
    call.op = shape.op;
    call.send = send;
    call.receive = receive;
    int result = 0;
    if (executor.all_reduce(call, reinterpret_cast<cuda::Stream>(stream), result)) {
        return result;
    }
    return ncclAllReduce(send, receive, shape.count, static_cast<ncclDataType_t>(shape.type),
                         static_cast<ncclRedOp_t>(shape.op), self.comm,
                         reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace deft::executor::test
