// SPDX-License-Identifier: Apache-2.0
// What NCCL answers to some hundred calls, right and wrong ones, one line each: "call -> result".
// Rank 0 prints. Functions that a release does not have are "absent". Nothing here depends on time.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/component/softdev/nccl/golden/two_ranks.h"

#pragma weak ncclAlltoAll
#pragma weak ncclGather
#pragma weak ncclScatter
#pragma weak ncclCommRevoke
#pragma weak ncclCommShrink

namespace softdev::test {
namespace {

constexpr size_t kCount = 1024;

class Asker {
public:
    explicit Asker(TwoRanks& self) : self_(self), rank_(self.rank) {}

    // Calls that NCCL refuses may leave its group open: they have processes of their own.
    void refused() {
        unusual_inits();
        null_communicator();
    }

    void all() {
        without_communicator();
        groups();
        ready();
        collectives();
        wrong_collectives();
        group_errors();
        messages();
        reductions();
        children();
        nonblocking();
        ends();
    }

private:
    void say(const char* what, long result) const {
        if (rank_ == 0) {
            std::printf("%s -> %ld\n", what, result);
            std::fflush(stdout);
        }
    }

    void without_communicator() {
        int version = 0;
        say("GetVersion", ncclGetVersion(&version));
        say("GetVersion NULL", ncclGetVersion(nullptr));
        ncclUniqueId id{};
        say("GetUniqueId", ncclGetUniqueId(&id));
        say("GetUniqueId NULL", ncclGetUniqueId(nullptr));
        for (int code = -1; code <= ncclNumResults; ++code) {
            if (rank_ == 0) {
                std::printf("GetErrorString %d -> %s\n", code,
                            ncclGetErrorString(static_cast<ncclResult_t>(code)));
            }
        }
        void* memory = nullptr;
        say("MemAlloc", ncclMemAlloc(&memory, 4096));
        say("MemFree", ncclMemFree(memory));
        say("MemFree NULL", ncclMemFree(nullptr));
    }

    void groups() {
        say("GroupEnd without start", ncclGroupEnd());
        say("GroupStart", ncclGroupStart());
        say("GroupStart again", ncclGroupStart());
        say("GroupEnd inner", ncclGroupEnd());
        say("GroupEnd outer", ncclGroupEnd());
        say("GroupEnd once more", ncclGroupEnd());
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        say("GroupSimulateEnd without start", ncclGroupSimulateEnd(&info));
        say("GroupStart", ncclGroupStart());
        say("GroupSimulateEnd of nothing", ncclGroupSimulateEnd(&info));
        say("... its estimate is undefined", info.estimatedTime == NCCL_UNDEF_FLOAT);
        say("GroupStart", ncclGroupStart());
        say("GroupSimulateEnd NULL", ncclGroupSimulateEnd(nullptr));
    }

    void unusual_inits() {
        ncclUniqueId id{};
        ncclGetUniqueId(&id);
        ncclComm_t comm = nullptr;
        say("CommInitRank newcomm NULL", ncclCommInitRank(nullptr, 1, id, 0));
        say("CommInitRank 0 ranks", ncclCommInitRank(&comm, 0, id, 0));
        say("CommInitRank -1 ranks", ncclCommInitRank(&comm, -1, id, 0));
        say("CommInitRank rank -1", ncclCommInitRank(&comm, 2, id, -1));
        say("CommInitRank rank 2 of 2", ncclCommInitRank(&comm, 2, id, 2));
        say("... its handle is NULL", comm == nullptr);
        const auto with = [&](const char* what, const std::function<void(ncclConfig_t&)>& change) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            change(config);
            comm = nullptr;
            say(what, ncclCommInitRankConfig(&comm, 2, id, rank_, &config));
            say("... its handle is NULL", comm == nullptr);
        };
        with("CommInitRankConfig magic 0", [](ncclConfig_t& c) { c.magic = 0; });
        with("CommInitRankConfig blocking 2", [](ncclConfig_t& c) { c.blocking = 2; });
        with("CommInitRankConfig cgaClusterSize -1",
             [](ncclConfig_t& c) { c.cgaClusterSize = -1; });
        with("CommInitRankConfig minCTAs 0", [](ncclConfig_t& c) { c.minCTAs = 0; });
        with("CommInitRankConfig maxCTAs -2", [](ncclConfig_t& c) { c.maxCTAs = -2; });
        with("CommInitRankConfig minCTAs above maxCTAs", [](ncclConfig_t& c) {
            c.minCTAs = 8;
            c.maxCTAs = 4;
        });
        with("CommInitRankConfig splitShare 3", [](ncclConfig_t& c) { c.splitShare = 3; });
        ncclComm_t comms[2] = {};
        const int twice[] = {0, 0};
        const int negative[] = {-1};
        const int none[] = {1000};
        say("CommInitAll comms NULL", ncclCommInitAll(nullptr, 1, nullptr));
        say("CommInitAll -1 devices", ncclCommInitAll(comms, -1, nullptr));
        say("CommInitAll 1000 devices", ncclCommInitAll(comms, 1000, nullptr));
        say("CommInitAll a device twice", ncclCommInitAll(comms, 2, twice));
        say("CommInitAll device -1", ncclCommInitAll(comms, 1, negative));
        say("CommInitAll device 1000", ncclCommInitAll(comms, 1, none));
    }

    void null_communicator() {
        float value[2] = {};
        int number = 0;
        ncclResult_t state = ncclSuccess;
        ncclComm_t child = nullptr;
        void* handle = nullptr;
        ncclRedOp_t op{};
        say("AllReduce comm NULL",
            ncclAllReduce(value, value, 1, ncclFloat, ncclSum, nullptr, nullptr));
        say("Reduce comm NULL",
            ncclReduce(value, value, 1, ncclFloat, ncclSum, 0, nullptr, nullptr));
        say("Broadcast comm NULL", ncclBroadcast(value, value, 1, ncclFloat, 0, nullptr, nullptr));
        say("AllGather comm NULL", ncclAllGather(value, value, 1, ncclFloat, nullptr, nullptr));
        say("ReduceScatter comm NULL",
            ncclReduceScatter(value, value, 1, ncclFloat, ncclSum, nullptr, nullptr));
        say("Send comm NULL", ncclSend(value, 1, ncclFloat, 0, nullptr, nullptr));
        say("Recv comm NULL", ncclRecv(value, 1, ncclFloat, 0, nullptr, nullptr));
        say("CommCount NULL", ncclCommCount(nullptr, &number));
        say("CommUserRank NULL", ncclCommUserRank(nullptr, &number));
        say("CommCuDevice NULL", ncclCommCuDevice(nullptr, &number));
        say("CommGetAsyncError NULL", ncclCommGetAsyncError(nullptr, &state));
        say("CommFinalize NULL", ncclCommFinalize(nullptr));
        say("CommDestroy NULL", ncclCommDestroy(nullptr));
        say("CommAbort NULL", ncclCommAbort(nullptr));
        say("CommSplit NULL", ncclCommSplit(nullptr, 0, 0, &child, nullptr));
        say("CommRegister NULL", ncclCommRegister(nullptr, value, sizeof value, &handle));
        say("CommDeregister NULL", ncclCommDeregister(nullptr, nullptr));
        say("RedOpCreatePreMulSum NULL",
            ncclRedOpCreatePreMulSum(&op, value, ncclFloat, ncclScalarHostImmediate, nullptr));
        say("RedOpDestroy NULL", ncclRedOpDestroy(static_cast<ncclRedOp_t>(100), nullptr));
        say("RedOpDestroy of a built-in one, NULL", ncclRedOpDestroy(ncclSum, nullptr));
    }

    void ready() {
        const ncclUniqueId id = self_.next_id();
        say("CommInitRank", ncclCommInitRank(&comm_, 2, id, rank_));
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        cudaMalloc(reinterpret_cast<void**>(&data_), 4 * kCount * sizeof(float));
        int number = -1;
        ncclResult_t state = ncclInternalError;
        say("CommCount", ncclCommCount(comm_, &number));
        say("... it says", number);
        say("CommUserRank", ncclCommUserRank(comm_, &number));
        say("... it says", number);
        say("CommCuDevice", ncclCommCuDevice(comm_, &number));
        say("... it says", number);
        say("CommGetAsyncError", ncclCommGetAsyncError(comm_, &state));
        say("... it says", state);
        say("CommCount result NULL", ncclCommCount(comm_, nullptr));
        say("CommUserRank result NULL", ncclCommUserRank(comm_, nullptr));
        say("CommCuDevice result NULL", ncclCommCuDevice(comm_, nullptr));
        say("CommGetAsyncError result NULL", ncclCommGetAsyncError(comm_, nullptr));
    }

    void fill() {
        cudaStreamSynchronize(stream_);
        std::vector<float> values(4 * kCount, static_cast<float>(rank_ + 1));
        cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice);
    }
    long value_at(size_t index) {
        cudaStreamSynchronize(stream_);
        float value = -1;
        cudaMemcpy(&value, data_ + index, sizeof value, cudaMemcpyDeviceToHost);
        return static_cast<long>(value);
    }

    void collectives() {
        float* const other = data_ + 2 * kCount;
        const auto ask = [&](const char* what, const std::function<ncclResult_t()>& call) {
            fill();
            self_.meet();
            say(what, call());
            say("... leaves", value_at(2 * kCount));
        };
        ask("AllReduce", [&] {
            return ncclAllReduce(data_, other, kCount, ncclFloat, ncclSum, comm_, stream_);
        });
        ask("AllReduce in place", [&] {
            return ncclAllReduce(other, other, kCount, ncclFloat, ncclSum, comm_, stream_);
        });
        ask("AllReduce max", [&] {
            return ncclAllReduce(data_, other, kCount, ncclFloat, ncclMax, comm_, stream_);
        });
        ask("AllReduce avg",
            [&] { return ncclAllReduce(data_, other, kCount, ncclInt, ncclAvg, comm_, stream_); });
        ask("AllReduce of nothing, NULL",
            [&] { return ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, comm_, stream_); });
        ask("Reduce to 0", [&] {
            return ncclReduce(data_, other, kCount, ncclFloat, ncclSum, 0, comm_, stream_);
        });
        ask("Broadcast from 1",
            [&] { return ncclBroadcast(data_, other, kCount, ncclFloat, 1, comm_, stream_); });
        ask("Bcast from 1", [&] { return ncclBcast(other, kCount, ncclFloat, 1, comm_, stream_); });
        ask("AllGather",
            [&] { return ncclAllGather(data_, other, kCount, ncclFloat, comm_, stream_); });
        ask("ReduceScatter", [&] {
            return ncclReduceScatter(data_, other, kCount, ncclFloat, ncclSum, comm_, stream_);
        });
        if (ncclAlltoAll == nullptr) {
            for (const char* name : {"AlltoAll", "Gather to 0", "Scatter from 1"}) {
                if (rank_ == 0) {
                    std::printf("%s -> absent\n", name);
                }
            }
            return;
        }
        ask("AlltoAll",
            [&] { return ncclAlltoAll(data_, other, kCount, ncclFloat, comm_, stream_); });
        ask("Gather to 0",
            [&] { return ncclGather(data_, other, kCount, ncclFloat, 0, comm_, stream_); });
        ask("Scatter from 1",
            [&] { return ncclScatter(data_, other, kCount, ncclFloat, 1, comm_, stream_); });
    }

    void wrong_collectives() {
        const auto reduce = [&](const char* what, int type, int op) {
            say(what, ncclAllReduce(data_, data_, kCount, static_cast<ncclDataType_t>(type),
                                    static_cast<ncclRedOp_t>(op), comm_, stream_));
        };
        reduce("AllReduce type -1", -1, ncclSum);
        reduce("AllReduce type 99", 99, ncclSum);
        reduce("AllReduce op -1", ncclFloat, -1);
        reduce("AllReduce op that nobody made", ncclFloat, 1000);
        say("Reduce root -1",
            ncclReduce(data_, data_, kCount, ncclFloat, ncclSum, -1, comm_, stream_));
        say("Reduce root 2",
            ncclReduce(data_, data_, kCount, ncclFloat, ncclSum, 2, comm_, stream_));
        say("Broadcast root 2", ncclBroadcast(data_, data_, kCount, ncclFloat, 2, comm_, stream_));
        say("Bcast root -1", ncclBcast(data_, kCount, ncclFloat, -1, comm_, stream_));
        say("Send to -1", ncclSend(data_, kCount, ncclFloat, -1, comm_, stream_));
        say("Send to 2", ncclSend(data_, kCount, ncclFloat, 2, comm_, stream_));
        say("Recv from 2", ncclRecv(data_, kCount, ncclFloat, 2, comm_, stream_));
        say("Send type 99",
            ncclSend(data_, kCount, static_cast<ncclDataType_t>(99), 1, comm_, stream_));
        say("AllGather type 99",
            ncclAllGather(data_, data_, 1, static_cast<ncclDataType_t>(99), comm_, stream_));
        ncclResult_t state = ncclInternalError;
        ncclCommGetAsyncError(comm_, &state);
        say("... after these the communicator's state", state);
    }

    void group_errors() {
        say("GroupStart", ncclGroupStart());
        say("AllReduce type 99 in a group",
            ncclAllReduce(data_, data_, kCount, static_cast<ncclDataType_t>(99), ncclSum, comm_,
                          stream_));
        say("AllReduce after it",
            ncclAllReduce(data_, data_, kCount, ncclFloat, ncclSum, comm_, stream_));
        say("GroupEnd", ncclGroupEnd());
        fill();
        self_.meet();
        say("GroupStart", ncclGroupStart());
        for (int i = 0; i < 2; ++i) {
            say("AllReduce in a group", ncclAllReduce(data_ + static_cast<size_t>(i) * kCount,
                                                      data_ + static_cast<size_t>(i) * kCount,
                                                      kCount, ncclFloat, ncclSum, comm_, stream_));
        }
        say("GroupEnd", ncclGroupEnd());
        say("... leaves", value_at(kCount));
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        ncclGroupStart();
        ncclAllReduce(data_, data_, kCount, ncclFloat, ncclSum, comm_, stream_);
        say("GroupSimulateEnd of an AllReduce", ncclGroupSimulateEnd(&info));
        say("... its estimate is above 0", info.estimatedTime > 0);
        ncclGroupStart();
        info.magic = 0;
        say("GroupSimulateEnd magic 0", ncclGroupSimulateEnd(&info));
        self_.meet();
    }

    void messages() {
        fill();
        self_.meet();
        say("GroupStart", ncclGroupStart());
        say("Send", ncclSend(data_, kCount, ncclFloat, 1 - rank_, comm_, stream_));
        say("Recv", ncclRecv(data_ + kCount, kCount, ncclFloat, 1 - rank_, comm_, stream_));
        say("GroupEnd", ncclGroupEnd());
        say("... leaves", value_at(kCount));
        say("GroupStart", ncclGroupStart());
        say("Send to itself", ncclSend(data_, kCount, ncclFloat, rank_, comm_, stream_));
        say("Recv from itself", ncclRecv(data_ + kCount, kCount, ncclFloat, rank_, comm_, stream_));
        say("GroupEnd", ncclGroupEnd());
        say("... leaves", value_at(kCount));
        say("GroupStart", ncclGroupStart());
        say("Send of nothing", ncclSend(nullptr, 0, ncclFloat, 1 - rank_, comm_, stream_));
        say("Recv of nothing", ncclRecv(nullptr, 0, ncclFloat, 1 - rank_, comm_, stream_));
        say("GroupEnd", ncclGroupEnd());
        cudaStreamSynchronize(stream_);
    }

    void reductions() {
        float two = 2;
        ncclRedOp_t op{};
        const auto create = [&](const char* what, ncclRedOp_t* out, void* scalar, int type,
                                int residence) {
            say(what,
                ncclRedOpCreatePreMulSum(out, scalar, static_cast<ncclDataType_t>(type),
                                         static_cast<ncclScalarResidence_t>(residence), comm_));
        };
        create("RedOpCreatePreMulSum", &op, &two, ncclFloat, ncclScalarHostImmediate);
        say("... is not a built-in one", op >= ncclNumOps);
        fill();
        self_.meet();
        say("AllReduce with it",
            ncclAllReduce(data_, data_, kCount, ncclFloat, op, comm_, stream_));
        say("... leaves", value_at(0));
        say("AllReduce with it, another type",
            ncclAllReduce(data_, data_, kCount, ncclInt, op, comm_, stream_));
        say("RedOpDestroy", ncclRedOpDestroy(op, comm_));
        say("RedOpDestroy again", ncclRedOpDestroy(op, comm_));
        say("AllReduce with the destroyed one",
            ncclAllReduce(data_, data_, kCount, ncclFloat, op, comm_, stream_));
        say("RedOpDestroy of a built-in one", ncclRedOpDestroy(ncclSum, comm_));
    }

    void children() {
        ncclComm_t child = nullptr;
        int number = -1;
        self_.meet();
        say("CommSplit", ncclCommSplit(comm_, 0, 1 - rank_, &child, nullptr));
        ncclCommUserRank(child, &number);
        say("... the key turns the ranks round", number);
        say("CommDestroy of a child", ncclCommDestroy(child));
        child = comm_;
        self_.meet();
        say("CommSplit without a color",
            ncclCommSplit(comm_, rank_ == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &child, nullptr));
        say("... its handle is NULL", child == nullptr);
        ncclCommDestroy(child);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.netName = "nosuchnet";
        child = nullptr;
        self_.meet();
        say("CommSplit netName unknown", ncclCommSplit(comm_, 0, 0, &child, &config));
        say("... its handle is NULL", child == nullptr);
        if (child != nullptr) {
            say("CommDestroy of it", ncclCommDestroy(child));
        }
        if (ncclCommShrink != nullptr) {
            int excluded[] = {1 - rank_, 5};
            child = nullptr;
            say("CommShrink of no rank",
                ncclCommShrink(comm_, excluded, 0, &child, nullptr, NCCL_SHRINK_DEFAULT));
            self_.meet();
            if (rank_ == 0) {
                say("CommShrink by rank 1",
                    ncclCommShrink(comm_, excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT));
                say("... has ranks",
                    child != nullptr && ncclCommCount(child, &number) == ncclSuccess ? number : -1);
                ncclCommDestroy(child);
            }
            self_.meet();
        }
    }

    // The state a nonblocking communicator comes to.
    static ncclResult_t settled(ncclComm_t comm) {
        ncclResult_t state = ncclInProgress;
        while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) {
            usleep(100);
        }
        return state;
    }

    void nonblocking() {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        const ncclUniqueId id = self_.next_id();
        ncclComm_t comm = nullptr;
        say("CommInitRankConfig blocking 0", ncclCommInitRankConfig(&comm, 2, id, rank_, &config));
        say("... comes to", settled(comm));
        ncclComm_t child = nullptr;
        self_.meet();
        say("CommSplit of a nonblocking one", ncclCommSplit(comm, 0, rank_, &child, nullptr));
        say("... comes to", settled(comm));
        while (__atomic_load_n(&child, __ATOMIC_ACQUIRE) == nullptr) {
            usleep(100);
        }
        say("... the child comes to", settled(child));
        ncclComm_t second = nullptr;
        self_.meet();
        say("GroupStart", ncclGroupStart());
        say("CommSplit in a group", ncclCommSplit(comm, 0, rank_, &second, nullptr));
        say("... its handle is NULL", second == nullptr);
        say("GroupEnd", ncclGroupEnd());
        say("... comes to", settled(comm));
        self_.meet();
        ncclCommFinalize(comm);
        say("CommFinalize of a nonblocking one comes to", settled(comm));
        say("CommDestroy of its child", ncclCommDestroy(child));
        if (second != nullptr) {
            say("CommDestroy of its second child", ncclCommDestroy(second));
        }
        say("CommDestroy of a nonblocking one", ncclCommDestroy(comm));
    }

    void ends() {
        self_.meet();
        say("CommFinalize", ncclCommFinalize(comm_));
        say("CommFinalize again", ncclCommFinalize(comm_));
        say("CommDestroy", ncclCommDestroy(comm_));
        const ncclUniqueId id = self_.next_id();
        ncclComm_t comm = nullptr;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.netName = "nosuchnet";
        say("CommInitRankConfig netName unknown",
            ncclCommInitRankConfig(&comm, 2, id, rank_, &config));
        say("CommInitRankConfig netName unknown leaves a handle", comm != nullptr);
        const ncclUniqueId last = self_.next_id();
        comm = nullptr;
        say("CommInitRank", ncclCommInitRank(&comm, 2, last, rank_));
        self_.meet();
        say("CommAbort", ncclCommAbort(comm));
    }

    TwoRanks& self_;
    const int rank_;
    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
    float* data_ = nullptr;
};

}  // namespace
}  // namespace softdev::test

int main() {
    using softdev::test::Asker;
    using softdev::test::TwoRanks;
    return softdev::test::run_two_ranks([](TwoRanks& self) { Asker(self).all(); }, 100) |
           softdev::test::run_two_ranks([](TwoRanks& self) { Asker(self).refused(); }, 30);
}
