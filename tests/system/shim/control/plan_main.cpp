// SPDX-License-Identifier: Apache-2.0
// One rank of a data-parallel job whose gradients are known numbers, so that what its updates
// receive can be told apart: iteration t of rank r contributes (t + 1) * (r + 1) in every element.
// Prints "t first second" per iteration: what both buckets held, divided by the sum of r + 1.
//
// usage: plan_main RANK RANKS ID_FILE ITERATIONS [HOW]
//   Runs until a plan is in force on all ranks, then ITERATIONS more. HOW is a scenario of
//   plan_scenarios.h; what some of them do and print:
//   plain    runs ITERATIONS and waits for no plan
//   step     asks deft_should_step() and prints nothing where there is no update
//   change   then gives the buckets other sizes, prints "changed", and does it all again
//   flush    then calls deft_flush(), prints "flushed N", and does it all again
//   suspend  then suspends and resumes its communicator, prints "resumed", and does it all again
//   unsteady waits for no plan, and has other buckets every ten iterations
//   recurring
//            waits for a plan for each of three pairs of buckets, then has another of them every
//            ten iterations; prints "changed"
//   until    runs until the file ID_FILE.stop is there, then ITERATIONS more
//   equal    both buckets have one size, so that only their buffers tell them apart
//   premul   its gradients are reduced by an operation of its own, made for each call, that doubles
//            them: under the plan, in one iteration behind the line "premultiplied" ("plain":
//            always)
//   split    trains on a communicator that is split off, with the ranks in the opposite order
//   grouped  makes every call in a group of its own, two levels deep, as older frameworks do
//   pair     then makes both calls of an iteration in one group, prints "paired", and goes on
//   foreign  under the plan makes the calls of one iteration on a stream of another context, which
//            NCCL may refuse; prints "foreign" and the results
//   unheard  the last rank loses its connection with the leader between its yes to a plan and the
//            decision, for good; prints "cut"
//   cut lanes
//            as "dies", with any NCCL: in front of an iteration the last rank cuts the connections
//            of NCCL's own network, by which a lane sends
//   cut off  under the plan the last rank loses its connection with the leader; prints "cut off"
//   dies     under the plan asks for the fault of the second network (ID_FILE.dies-RANK.asked, for
//            SOFTNET_SOCKET_FAULT), while a thread of its own watches the communicator; the first
//            bucket is large; prints "dies"
//   frees medium
//            in each iteration a rank waits for the whole device behind its first call, another one
//            behind its second, as where memory is freed; the first bucket is large
//   grow     under the plan makes a larger communicator with a rank that joins, prints "grown"
//   simulate rank 1 alone has a group simulated, before the plan and under it
//   busy     destroys the communicator without waiting for its last transfers
//   stall-N  iteration N (-1: the last one) is not made by rank 1, and rank 0 aborts its
//            communicator from another thread while it waits for it; prints "aborted"
//   shrink   under the plan the last rank makes no more calls; the others shrink the communicator,
//            abort what is under way, and reduce on the smaller one; prints "shrunk"
//   revoke   the same, but they revoke the communicator before they shrink it
// A job whose communicator fails prints "lost", aborts it and ends.
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "deft/deft.h"
#include "tests/system/shim/control/middleman.h"
#include "tests/system/shim/control/plan_changes.h"
#include "tests/system/shim/control/plan_endings.h"
#include "tests/system/shim/control/plan_scenarios.h"
#include "tests/system/shim/control/recurring.h"
#include "tests/system/shim/exchange_id.h"
#include "tests/system/shim/ways.h"

namespace deft::test {
namespace {

constexpr int kMetricEvery = 10;
constexpr std::size_t kMetrics = 2;
constexpr unsigned kMostSeconds = 420;  // however slow the machine

CUresult make_context(CUcontext* context, CUdevice device) {
#if CUDA_VERSION >= 13000
    return cuCtxCreate(context, nullptr, 0, device);
#else
    return cuCtxCreate(context, 0, device);
#endif
}

template <class Function>
Function* look_up(const char* name) {
    auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
    check(found == nullptr, "deft's C API");
    return found;
}

class Rank {
public:
    Rank(const Scenario& scenario, int rank, int ranks, std::string file, int iterations)
        : scenario_(scenario),
          rank_(rank),
          ranks_(ranks),
          file_(std::move(file)),
          iterations_(iterations),
          weights_(static_cast<float>(ranks * (ranks + 1) / 2)),
          first_(scenario.first),
          second_(scenario.second),
          total_(first_ + second_),
          host_(total_ + kMetrics + scenario.biases),
          recurring_(ranks),
          left_(scenario.counted == Counted::AtOnce ? iterations : -1),
          rounds_(scenario.sizes == Sizes::ChangeOnce || scenario.flushes || scenario.suspends ? 2
                                                                                               : 1),
          plans_wanted_(scenario.sizes == Sizes::Recurring ? float{Recurring::kPairs} : 1) {}

    void run() {
        open_device();
        make_communicator();
        if (scenario_.middle == Middle::Dies || scenario_.middle == Middle::CutLanes) {
            watch(comm_);
        }
        for (int t = 0; rounds_ > 0; ++t) {
            if (t > 0 && t == stalls_at()) {
                return stall_now();
            }
            iterate(t);
            if (left_ >= 0 && left_-- == 0 && end_round()) {
                return;
            }
        }
        end();
    }

private:
    void open_device() {
        CUdevice device = 0;
        CUcontext context = nullptr;
        check(cuInit(0), "cuInit");
        check(cuDeviceGet(&device, 0), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        if (scenario_.middle == Middle::ForeignStream) {
            CUcontext other = nullptr;
            check(make_context(&other, device), "cuCtxCreate");
            check(cuStreamCreate(&foreign_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        }
        calls_ = stream_;
        check(cuMemAlloc(&memory_, host_.size() * sizeof(float)), "cuMemAlloc");
        if (scenario_.crowded && rank_ + 1 == ranks_) {
            take_memory_but(15);
        }
        data_ = reinterpret_cast<float*>(memory_);
    }

    void make_communicator() {
        const char* const making = "making the communicator";
        switch (scenario_.making) {
            case Making::Nonblocking:
                return check(make_nonblocking(&comm_, rank_, ranks_, file_), making);
            case Making::Scalable:
                return check(make_scalable(&comm_, rank_, ranks_, file_), making);
            case Making::Usual:
            case Making::Split:
                break;
        }
        ncclUniqueId id = exchange_id(rank_, file_);
        if (scenario_.unheard && rank_ + 1 == ranks_) {
            Middleman::enter(id);
        }
        check(ncclCommInitRank(&comm_, ranks_, id, rank_), making);
        if (scenario_.making == Making::Split) {
            whole_ = comm_;
            check(ncclCommSplit(whole_, 0, -rank_, &comm_, nullptr), "ncclCommSplit");
        }
    }

    bool nonblocking() const { return scenario_.making == Making::Nonblocking; }
    bool on_foreign_stream() const { return calls_ != stream_; }
    // 0: in none.
    int stalls_at() const { return scenario_.ending == Ending::Stall ? scenario_.stalls_at : 0; }

    int all_reduce(float* at, std::size_t count) {
        const bool gradient = at < data_ + total_;
        const int made = doubled_ && gradient
                             ? all_reduce_doubled(at, count, comm_, calls_)
                             : ncclAllReduce(at, at, count, ncclFloat, ncclSum, comm_, calls_);
        return nonblocking() ? wait_done(made, comm_) : made;
    }

    void reduce(float* at, std::size_t count) {
        const std::lock_guard lock(in_nccl());
        if (scenario_.grouped && (ncclGroupStart() != 0 || ncclGroupStart() != 0)) {
            give_up(comm_);
        }
        const int result = all_reduce(at, count);
        bool failed = result != 0;
        if (on_foreign_stream()) {
            std::printf(" %d", result);
            failed = false;  // on all ranks alike
        }
        // Without a place for the estimate nothing is simulated.
        if (scenario_.grouped && (ncclGroupEnd() != 0 || ncclGroupSimulateEnd(nullptr) != 0)) {
            failed = true;
        }
        if (failed) {
            give_up(comm_);
        }
    }

    void resize(std::size_t first) {
        first_ = first;
        second_ = total_ - first;
    }

    void choose_sizes(int t) {
        if (scenario_.sizes == Sizes::Unsteady && t > 0 && t % kMetricEvery == 0) {
            // No sequence of them comes back: that would be a longer iteration.
            resize(50'001 - 100 * static_cast<std::size_t>(t / kMetricEvery * 37 % 101));
        }
        if (scenario_.sizes != Sizes::Recurring || t % kMetricEvery != 1) {
            return;
        }
        if (t > 1) {
            recurring_.next(switched_);
        }
        if (const std::size_t count = 50'001 - 100 * recurring_.pair(); count != first_) {
            resize(count);
            std::printf("changed\n");
        }
    }

    // The number whose sum over the ranks tells each of them that all have come so far.
    float metric(int t) const {
        if (t % kMetricEvery != 0) {
            return 0;
        }
        deft_stats_t now{};
        now.size = sizeof(now);
        check(stats_(&now), "deft_stats");
        if (scenario_.counted == Counted::BehindStop) {
            return static_cast<float>(exists(file_ + ".stop"));
        }
        return static_cast<float>(scenario_.middle == Middle::FillMemory ? now.in_force
                                                                         : now.switched);
    }

    void fill(int t) {
        host_.assign(host_.size(), static_cast<float>((t + 1) * (rank_ + 1)));
        choose_sizes(t);
        host_[total_ + 1] = metric(t);
        if (cuMemcpyHtoDAsync(memory_, host_.data(), host_.size() * sizeof(float), stream_) != 0 ||
            cuStreamSynchronize(stream_) != 0) {
            give_up(comm_);
        }
    }

    // What the middle iteration has that the others have not.
    void begin_middle(bool middle) {
        doubled_ = scenario_.doubled;
        if (!middle) {
            return;
        }
        switch (scenario_.middle) {
            case Middle::Premultiplied:
                doubled_ = true;
                std::printf("premultiplied\n");
                break;
            case Middle::ForeignStream:
                calls_ = foreign_;
                std::printf("foreign");
                break;
            case Middle::Pair:
                std::printf("paired\n");
                check(ncclGroupStart(), "ncclGroupStart");
                break;
            case Middle::CutOff:
                std::printf("cut off\n");
                if (rank_ + 1 == ranks_) {
                    cut_off(file_);
                }
                break;
            case Middle::Dies:
                std::printf("dies\n");
                touch(file_ + ".dies-" + std::to_string(rank_) + ".asked");
                break;
            case Middle::CutLanes:
                std::printf("dies\n");
                if (rank_ + 1 == ranks_) {
                    cut_lanes();
                }
                break;
            case Middle::FillMemory:
                std::printf("filled\n");
                if (rank_ + 1 == ranks_) {
                    take_memory_but(100);
                }
                break;
            case Middle::Grow:
                grow(rank_, ranks_, comm_);
                break;
            case Middle::Nothing:
                break;
        }
    }

    void end_middle(bool middle) {
        if (on_foreign_stream()) {
            std::printf("\n");
            check(cuStreamSynchronize(calls_), "the calls on the foreign stream");
            calls_ = stream_;
        }
        if (middle && scenario_.middle == Middle::Pair) {
            check(ncclGroupEnd(), "ncclGroupEnd");
        }
    }

    void iterate(int t) {
        fill(t);
        const bool middle = left_ >= 0 && left_ == iterations_ / 2;
        if (scenario_.simulates && rank_ == 1 && (t == 3 || middle)) {
            simulate(comm_, stream_, data_, first_);
        }
        if (scenario_.grouped && t == 3) {
            refused(comm_, stream_, data_, first_);
        }
        begin_middle(middle);
        // Forward, and backward until the first bucket is complete.
        ::usleep(scenario_.sizes == Sizes::Recurring ? recurring_.forward_us() : 1500);
        reduce(data_, first_);
        if (scenario_.frees && t % 2 == rank_ % 2) {
            wait_for_device();
        }
        ::usleep(500);
        if (scenario_.biases > 0) {
            reduce(data_ + total_ + kMetrics, scenario_.biases);
        }
        reduce(data_ + first_, second_);
        if (scenario_.frees && t % 2 != rank_ % 2) {
            wait_for_device();
        }
        end_middle(middle);
        if (t % kMetricEvery == 0) {
            reduce(data_ + total_, 1);  // metrics: nothing may ever happen to them
            reduce(data_ + total_ + 1, 1);
        }
        look_at(t);
    }

    // As an allocator that keeps nothing: CUDA waits for all streams when memory is freed.
    static void wait_for_device() {
        CUdeviceptr memory = 0;
        check(cuMemAlloc(&memory, 1 << 20), "cuMemAlloc");
        check(cuMemFree(memory), "cuMemFree");
    }

    // What the update has received.
    void look_at(int t) {
        if (cuMemcpyDtoHAsync(host_.data(), memory_, host_.size() * sizeof(float), stream_) != 0) {
            give_up(comm_);  // the device has seen the transfer fail
        }
        wait(stream_, comm_);
        const float one = same_everywhere(host_.data(), first_, "bucket 0");
        const float two = same_everywhere(host_.data() + first_, second_, "bucket 1");
        const float sum = static_cast<float>(t + 1) * weights_;
        if (scenario_.biases > 0) {
            const float* const biases = host_.data() + total_ + kMetrics;
            check(same_everywhere(biases, scenario_.biases, "the biases") != sum, "the biases");
        }
        if (scenario_.asks && should_step_() == 0) {
            check(one != 0 || two != 0, "no update, but a gradient");
        } else {
            std::printf("%d %g %g\n", t, static_cast<double>(one / weights_),
                        static_cast<double>(two / weights_));
        }
        if (t % kMetricEvery != 0) {
            return;
        }
        check(host_[total_] != sum, "the metric");
        switched_ = host_[total_ + 1];
        if (left_ < 0 && switched_ >= plans_wanted_ * static_cast<float>(ranks_)) {
            left_ = iterations_;
        }
        // The driver is asked for its memory once a second, however fast the iterations are.
        if (scenario_.middle == Middle::FillMemory && left_ >= 0 && left_ < iterations_ / 2 &&
            switched_ > 0) {
            left_ = iterations_ / 2;
        }
    }

    void stall_now() { stall(rank_, comm_, stream_, data_, first_, file_ + ".aborted"); }

    // The iterations have been counted. True: the job has ended with its communicator.
    bool end_round() {
        --rounds_;
        plans_wanted_ += 1;
        if (rounds_ > 0) {
            if (scenario_.flushes) {
                std::printf("flushed %d\n", flush_());
            } else if (scenario_.suspends) {
                suspend_and_resume(comm_, data_);
            } else {
                resize(first_ - 1'000);
                std::printf("changed\n");
            }
            return false;
        }
        switch (scenario_.ending) {
            case Ending::Stall:
                if (stalls_at() >= 0) {
                    return false;
                }
                stall_now();
                return true;
            case Ending::Shrink:
            case Ending::Revoke:
                shrink(rank_, ranks_, comm_, stream_, memory_, first_, second_, file_,
                       scenario_.ending == Ending::Revoke);
                return true;
            case Ending::Busy:
                reduce(data_, first_);
                reduce(data_ + first_, second_);
                return false;
            case Ending::Destroy:
            case Ending::Abort:
                return false;
        }
        return false;
    }

    void end() {
        if (scenario_.ending == Ending::Abort) {
            // It takes from a rank that is still in its last call what that was to receive.
            wait_for_all(rank_, ranks_, file_);
            check(ncclCommAbort(comm_), "ncclCommAbort");
        } else {
            // The end of a nonblocking communicator waits for nobody: another rank may be in its
            // last call.
            if (nonblocking()) {
                check(wait_done(ncclCommFinalize(comm_), comm_), "ncclCommFinalize");
            }
            check(ncclCommDestroy(comm_), "ncclCommDestroy");
        }
        if (whole_ != nullptr) {
            check(ncclCommDestroy(whole_), "ncclCommDestroy");
        }
    }

    const Scenario scenario_;
    const int rank_;
    const int ranks_;
    const std::string file_;
    const int iterations_;
    const float weights_;
    std::size_t first_;
    std::size_t second_;
    const std::size_t total_;
    std::vector<float> host_;  // both buckets, the metrics, the biases
    Recurring recurring_;
    int left_;  // of the iterations that are counted; -1: they have not begun
    int rounds_;
    float plans_wanted_;
    float switched_ = 0;  // over all ranks, when the last metrics came
    bool doubled_ = false;
    CUstream stream_ = nullptr;
    CUstream foreign_ = nullptr;
    CUstream calls_ = nullptr;  // of the gradients
    CUdeviceptr memory_ = 0;
    float* data_ = nullptr;
    ncclComm_t comm_ = nullptr;
    ncclComm_t whole_ = nullptr;  // of which comm_ was split off
    decltype(&deft_should_step) should_step_ =
        look_up<decltype(deft_should_step)>("deft_should_step");
    decltype(&deft_flush) flush_ = look_up<decltype(deft_flush)>("deft_flush");
    decltype(&deft_stats) stats_ = look_up<decltype(deft_stats)>("deft_stats");
};

}  // namespace
}  // namespace deft::test

int main(int argc, char** argv) {
    using namespace deft::test;
    check(argc < 5, "usage");
    ::alarm(kMostSeconds);  // ends the process, wherever it waits
    const std::optional<Scenario> scenario = find_scenario(argc > 5 ? argv[5] : "");
    check(!scenario, "usage: there is no scenario of this name");
    Rank(*scenario, std::atoi(argv[1]), std::atoi(argv[2]), argv[3], std::atoi(argv[4])).run();
    return 0;
}
