// SPDX-License-Identifier: Apache-2.0
// Messages in a GPU's memory: the software verbs device has some that a processor may not touch.
#include <sys/mman.h>

#include "deft/abi/net.h"
#include "plugin/gpu_support.h"
#include "tests/component/plugin/verbs/mixed_pair.h"

namespace deft::net::testing {
namespace {

// In the driver's place.
class SoftGpu final : public GpuMemory {
public:
    void prepare(const void* /*gpu*/) override {}
    bool put(void* gpu, const void* host, std::size_t bytes) override {
        ++puts;
        return works && softverbs<int(void*, const void*, std::size_t)>("softverbs_copy_to_device")(
                            gpu, host, bytes) == 0;
    }
    bool get(void* host, const void* gpu, std::size_t bytes) override {
        ++gets;
        return works && softverbs<int(void*, const void*, std::size_t)>(
                            "softverbs_copy_from_device")(host, gpu, bytes) == 0;
    }
    bool flush(const void* /*gpu*/) override {
        ++flushes;
        return works;
    }

    bool works = true;
    int puts = 0;
    int gets = 0;
    int flushes = 0;
};

VerbsPorts over_verbs(const Ports& ports) {
    VerbsPorts all;
    for (const auto& port : ports) {
        all.push_back(std::static_pointer_cast<const VerbsPort>(port));
    }
    return all;
}

class VerbsGpuMemory : public WithPorts {
protected:
    int copies() const { return from_.gets + to_.puts; }
    // Of paths over the port.
    static std::uint64_t transitions() {
        return LinkStats::process().link("near:1", "roce").transitions.load();
    }

    SoftGpu from_;
    SoftGpu to_;
};

// What is small, too: a processor that touches any of it faults.
TEST_F(VerbsGpuMemory, NoProcessorTouchesWhatTheDevicesCanCarry) {
    for (const OnGpu& gpus : {OnGpu{&from_, &to_}, OnGpu{&from_, nullptr}, OnGpu{nullptr, &to_}}) {
        MixedPair pair(1, near_, far_, gpus);
        ASSERT_TRUE(pair.establish());
        EXPECT_EQ(pair.up(), 2U);
        const std::uint64_t before = transitions();
        ASSERT_TRUE(pair.run(100));
        // A machine that stands still for a quarter of a second loses the path.
        EXPECT_TRUE(copies() == 0 || transitions() != before) << copies();
    }
    EXPECT_GT(by_verbs(), 0U);
}

// Others are shared by both kinds of path, as ever.
TEST_F(VerbsGpuMemory, OnlyMessagesInAGpusMemoryLeaveTcpAlone) {
    for (const bool host : {true, false}) {
        const std::uint64_t before = by_tcp();
        MixedPair pair(1, near_, far_, {&from_, &to_});
        pair.in_host_memory = host;
        ASSERT_TRUE(pair.establish());
        const std::uint64_t made = transitions();
        ASSERT_TRUE(pair.run(100));
        EXPECT_TRUE((by_tcp() > before) == host || transitions() != made);
    }
}

TEST_F(VerbsGpuMemory, WhereOneSideHasNoPortTheyAreCopiedForTcp) {
    for (const bool sender : {true, false}) {
        MixedPair pair(1, sender ? near_ : Ports(), sender ? Ports() : far_, {&from_, &to_});
        ASSERT_TRUE(pair.establish());
        ASSERT_TRUE(pair.run(50));
    }
    EXPECT_EQ(by_verbs(), 0U);
    EXPECT_GT(from_.gets, 0);
    EXPECT_GT(to_.puts, 0);
}

TEST_F(VerbsGpuMemory, OnSeveralTcpPathsTheyAreWholeToo) {
    MixedPair pair(3, {}, {}, {&from_, &to_});
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.up(), 3U);
    ASSERT_TRUE(pair.run(100));
    EXPECT_GT(from_.gets, 0);
    EXPECT_GT(to_.puts, 0);
}

TEST_F(VerbsGpuMemory, APortThatFailsLeavesThemToTcpUntilItIsBack) {
    MixedPair pair(1, near_, far_, {&from_, &to_});
    ASSERT_TRUE(pair.establish());
    std::unique_ptr<Faults> faults;
    ASSERT_TRUE(pair.run(400, [&](std::size_t done) {
        if (done == 50) {
            faults = std::make_unique<Faults>("lose_acks=1");
        }
    }));
    EXPECT_EQ(injected("lose_acks"), 1);
    EXPECT_GT(from_.gets, 0);
    EXPECT_GT(to_.puts, 0);
    const Nanos deadline = steady_now() + kPatience;
    while (pair.up() < 2 && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
    }
    ASSERT_EQ(pair.up(), 2U);
    const int copied = copies();
    const std::uint64_t carried = by_verbs();
    const std::uint64_t returned = transitions();
    ASSERT_TRUE(pair.run(100));
    EXPECT_GT(by_verbs(), carried);
    EXPECT_TRUE(copies() == copied || transitions() != returned) << copies() - copied;
}

TEST_F(VerbsGpuMemory, WhatCannotBeCopiedEndsTheConnectionPlainly) {
    from_.works = false;
    MixedPair pair(1, {}, {}, {&from_, &to_});
    ASSERT_TRUE(pair.establish());
    void* const gpu = softverbs<void*(std::size_t)>("softverbs_alloc_device")(4096);
    std::string problem;
    const Region region(Memory{gpu, 4096, Memory::Kind::Device}, pair.sender->domains(), problem);
    std::vector<std::byte> to(4096);
    ASSERT_NE(pair.sender->isend(gpu, 4096, steady_now(), &region), nullptr);
    ASSERT_NE(pair.receiver->irecv(to.data(), to.size(), false, steady_now()), nullptr);
    const Nanos deadline = steady_now() + kPatience;
    while (!pair.sender->failure() && steady_now() < deadline) {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
    }
    EXPECT_NE(std::string(pair.sender->failure().text).find("copied from the GPU's memory"),
              std::string::npos)
        << pair.sender->failure().text;
    pair.sender.reset();
    softverbs<int(void*)>("softverbs_free_device")(gpu);
}

// The bus brings writes when it likes, but never behind a read.
TEST_F(VerbsGpuMemory, AFlushBringsWhatTheDeviceHasWritten) {
    const Faults faults("gpu_late=100%,gpu_late_ms=100000");
    const long before = injected("gpu_late");
    to_.works = false;
    MixedPair pair(1, near_, far_, {&from_, &to_});
    ASSERT_TRUE(pair.establish());
    ASSERT_TRUE(pair.run(60));
    EXPECT_GT(injected("gpu_late"), before);
}

// And where no port can read there, the driver is asked.
TEST_F(VerbsGpuMemory, WhatNoPortCanReadTheDriverFlushes) {
    MixedPair pair(1, near_, far_, {&from_, &to_});
    pair.flushes_by_driver = true;
    ASSERT_TRUE(pair.establish());
    ASSERT_TRUE(pair.run(60));
    EXPECT_GT(to_.flushes, 0);
}

// What NCCL hands over: a descriptor of whole pages, and an address inside of the first.
TEST_F(VerbsGpuMemory, ADmabufIsRegisteredByWholePages) {
    constexpr std::size_t kPage = 4096;
    const int file = memfd_create("dmabuf", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, 4 * kPage), 0);
    Memory memory{reinterpret_cast<const void*>(0x7000000100), 3 * kPage, Memory::Kind::Device};
    memory.dmabuf = file;
    std::string problem;
    EXPECT_NE(over_verbs(near_)[0]->domain->registration(memory, problem), nullptr) << problem;
    ::close(file);
}

TEST_F(VerbsGpuMemory, NcclIsToldOfItOnlyWhereEveryPortTakesIt) {
    const std::string root = ::testing::TempDir() + "/gpu-support-" + std::to_string(getpid());
    EXPECT_EQ(gpu_support(over_verbs(near_), root, &from_).pointers, DEFT_NET_PTR_DMABUF);
    EXPECT_EQ(gpu_support({}, root, &from_).pointers, 0);
    const GpuSupport none = gpu_support(over_verbs(near_), root, nullptr);
    EXPECT_EQ(none.pointers, 0) << "nobody could copy for TCP";
    EXPECT_EQ(none.copies, nullptr);
    ASSERT_EQ(std::system(("mkdir -p " + root + "/module/nvidia_peermem && echo 1 > " + root +
                           "/module/nvidia_peermem/version")
                              .c_str()),
              0);
    const GpuSupport both = gpu_support(over_verbs(near_), root, &from_);
    EXPECT_EQ(both.pointers, DEFT_NET_PTR_CUDA | DEFT_NET_PTR_DMABUF);
    EXPECT_EQ(both.copies, &from_);
}

}  // namespace
}  // namespace deft::net::testing
