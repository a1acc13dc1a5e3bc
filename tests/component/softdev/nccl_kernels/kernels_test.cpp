// SPDX-License-Identifier: Apache-2.0
// The kernels' CPU twins against each other: every collective, protocol and release, with results
// that are known.
#include <mutex>
#include <tuple>

#include "tests/component/softdev/nccl_kernels/ranks.h"

namespace softdev::nccl_kernels::test {
namespace {

TEST(Functions, HaveNcclsNumbers) {
    const auto old = list_functions(false);
    ASSERT_EQ(old.size(), 670u);
    EXPECT_EQ(describe(old[0]), "AllGather COLLNET_DIRECT SIMPLE");
    EXPECT_EQ(describe(old[5]), "AllGather RING SIMPLE");
    EXPECT_EQ(describe(old.back()), "SendRecv SIMPLE");
    EXPECT_EQ(list_functions(true).size(), 673u);
    EXPECT_EQ(describe(list_functions(true)[6]), "AllGatherV RING LL");
}

TEST(Layouts, AreThoseOfFourReleases) {
    EXPECT_EQ(layout_of(22602), nullptr);
    EXPECT_TRUE(layout_of(22703)->reversed_parts);
    EXPECT_FALSE(layout_of(22809)->reversed_parts);
    EXPECT_FALSE(layout_of(22809)->gathers_unequally);
    EXPECT_EQ(layout_of(22907)->work_bytes, 96u);
    EXPECT_EQ(layout_of(23007)->work_bytes, 128u);
    EXPECT_EQ(layout_of(23100), nullptr);
}

using Case = std::tuple<int, int, int, Protocol>;  // version, ranks, channels, protocol

class Kernels : public ::testing::TestWithParam<Case> {
protected:
    Kernels()
        : ranks_(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())),
          protocol_(std::get<3>(GetParam())) {}

    // So small that every size has several chunks.
    std::size_t grains() const { return protocol_ == Protocol::ll ? 16 : 2; }

    // Values that are exact in float and differ by rank and place.
    static float value(int rank, std::size_t i) {
        return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
    }
    float sum(std::size_t i) const {
        float all = 0;
        for (int rank = 0; rank < ranks_.ranks(); ++rank) {
            all += value(rank, i);
        }
        return all;
    }
    std::vector<std::vector<float>> inputs(std::size_t elements) const {
        std::vector<std::vector<float>> all;
        for (int rank = 0; rank < ranks_.ranks(); ++rank) {
            all.emplace_back(elements);
            for (std::size_t i = 0; i < elements; ++i) {
                all.back()[i] = value(rank, i);
            }
        }
        return all;
    }
    template <class Make>
    void run(const Function& function, Make make) {
        const std::uint32_t number = ranks_.number(function);
        std::vector<std::vector<std::byte>> blocks;
        for (int rank = 0; rank < ranks_.ranks(); ++rank) {
            blocks.push_back(ranks_.arguments(rank, {{batch::collective, number, {make(rank)}}}));
        }
        ranks_.launch(blocks);
    }
    static std::size_t at(int i) { return static_cast<std::size_t>(i); }

    Ranks ranks_;
    Protocol protocol_;
};

constexpr std::size_t kSizes[] = {1, 5, 1000, 33333};

TEST_P(Kernels, AllReduceByRing) {
    for (const std::size_t n : kSizes) {
        auto in = inputs(n);
        std::vector<std::vector<float>> out(in.size(), std::vector<float>(n, -1));
        run({Collective::all_reduce, Operation::sum, Type::f32, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(in[at(rank)].data(), out[at(rank)].data(), n, 4, grains());
            });
        for (const auto& mine : out) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(mine[i], sum(i)) << i << " of " << n;
            }
        }
    }
}

TEST_P(Kernels, AllReduceInPlaceByTree) {
    for (const std::size_t n : kSizes) {
        auto data = inputs(n);
        run({Collective::all_reduce, Operation::sum, Type::f32, Algorithm::tree, protocol_},
            [&](int rank) {
                return ranks_.collective(data[at(rank)].data(), data[at(rank)].data(), n, 4,
                                         grains());
            });
        for (const auto& mine : data) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(mine[i], sum(i)) << i << " of " << n;
            }
        }
    }
}

TEST_P(Kernels, ReduceScatterAndAllGather) {
    const auto ranks = at(ranks_.ranks());
    for (const std::size_t n : kSizes) {
        auto in = inputs(n * ranks);
        std::vector<std::vector<float>> part(ranks, std::vector<float>(n));
        run({Collective::reduce_scatter, Operation::sum, Type::f32, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(in[at(rank)].data(), part[at(rank)].data(), n, 4,
                                         grains());
            });
        std::vector<std::vector<float>> all(ranks, std::vector<float>(n * ranks));
        run({Collective::all_gather, Operation::none, Type::none, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(part[at(rank)].data(), all[at(rank)].data(), n * 4, 1,
                                         grains());
            });
        for (const auto& mine : all) {
            for (std::size_t i = 0; i < n * ranks; ++i) {
                ASSERT_EQ(mine[i], sum(i)) << i << " of " << n;
            }
        }
    }
}

TEST_P(Kernels, BroadcastAndReduceFromEveryRoot) {
    constexpr std::size_t n = 5000;
    for (int root = 0; root < ranks_.ranks(); ++root) {
        auto in = inputs(n);
        std::vector<std::vector<float>> out(in.size(), std::vector<float>(n));
        run({Collective::broadcast, Operation::none, Type::none, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(in[at(rank)].data(), out[at(rank)].data(), n * 4, 1,
                                         grains(), root);
            });
        for (const auto& mine : out) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(mine[i], value(root, i)) << i;
            }
        }
        run({Collective::reduce, Operation::sum, Type::f32, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(in[at(rank)].data(), out[at(rank)].data(), n, 4, grains(),
                                         root);
            });
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(out[at(root)][i], sum(i)) << i;
        }
    }
}

TEST_P(Kernels, OperationsOnSignedIntegers) {
    constexpr std::size_t n = 3000;
    const auto ranks = ranks_.ranks();
    const auto number = [](int rank, std::size_t i) {
        return static_cast<std::int32_t>(i % 17) - 8 - rank * 3;
    };
    struct Wanted {
        Operation operation;
        std::uint64_t argument;
        std::int32_t (*combine)(std::int32_t, std::int32_t);
    };
    const Wanted wanted[] = {
        {Operation::min_max, 0x80000000,
         [](std::int32_t a, std::int32_t b) { return std::min(a, b); }},
        {Operation::min_max, 0x7fffffff,
         [](std::int32_t a, std::int32_t b) { return std::max(a, b); }},
        {Operation::product, 0, [](std::int32_t a, std::int32_t b) { return a * b; }},
        {Operation::sum_post_div, static_cast<std::uint64_t>(ranks) << 1 | 1,
         [](std::int32_t a, std::int32_t b) { return a + b; }},
    };
    for (const Wanted& w : wanted) {
        std::vector<std::vector<std::int32_t>> data(at(ranks), std::vector<std::int32_t>(n));
        for (int rank = 0; rank < ranks; ++rank) {
            for (std::size_t i = 0; i < n; ++i) {
                data[at(rank)][i] = number(rank, i);
            }
        }
        SCOPED_TRACE("argument " + std::to_string(w.argument));
        run({Collective::all_reduce, w.operation, Type::u32, Algorithm::ring, protocol_},
            [&](int rank) {
                return ranks_.collective(data[at(rank)].data(), data[at(rank)].data(), n, 4,
                                         grains(), 0, w.argument);
            });
        for (std::size_t i = 0; i < n; ++i) {
            std::int32_t expected = number(0, i);
            for (int rank = 1; rank < ranks; ++rank) {
                expected = w.combine(expected, number(rank, i));
            }
            expected = w.operation == Operation::sum_post_div ? expected / ranks : expected;
            ASSERT_EQ(data[0][i], expected) << i;
            ASSERT_EQ(data[at(ranks - 1)][i], expected) << i;
        }
    }
}

// Every rank to every rank, in several batches: the works of one go on at the same time.
TEST_P(Kernels, MessagesToEverybody) {
    const int ranks = ranks_.ranks();
    const bool low_latency = protocol_ == Protocol::ll;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{60001}}) {
        std::vector<std::vector<std::uint8_t>> in;
        std::vector<std::vector<std::uint8_t>> out;
        for (int rank = 0; rank < ranks; ++rank) {
            in.emplace_back(bytes * at(ranks) + 1);
            out.emplace_back(bytes * at(ranks) + 1);
            for (std::size_t i = 0; i < in.back().size(); ++i) {
                in.back()[i] = static_cast<std::uint8_t>(i * 3 + at(rank) * 29);
            }
        }
        const int channels = ranks_.channels() == 3 ? 2 : ranks_.channels();  // a power of two
        std::vector<std::vector<std::byte>> blocks;
        for (int rank = 0; rank < ranks; ++rank) {
            std::vector<Ranks::Batch> batches;
            for (int turn = 0; turn < ranks; ++turn) {
                const int to = (rank + turn) % ranks;
                const int from = (rank + ranks - turn) % ranks;
                std::vector<std::byte> work(message_work::kBytes);
                put(work.data(), message_work::kAddress, in[at(rank)].data() + at(to) * bytes);
                put(work.data(), message_work::kAddress + 8,
                    out[at(rank)].data() + at(from) * bytes);
                put(work.data(), message_work::kSize, bytes);
                put(work.data(), message_work::kSize + 8, bytes);
                put(work.data(), message_work::kRank, to);
                put(work.data(), message_work::kRank + 4, from);
                put<std::uint8_t>(work.data(), message_work::kChannels,
                                  static_cast<std::uint8_t>(channels));
                put<std::uint8_t>(work.data(), message_work::kFirstChannel, 0);
                for (std::size_t which = 0; which < 2; ++which) {
                    put<std::uint8_t>(work.data(), message_work::kParts + which,
                                      static_cast<std::uint8_t>(channels));
                    // 448 bytes fit in a step of LL, 2048 in one of Simple.
                    put<std::uint8_t>(work.data(), message_work::kChunk + which,
                                      low_latency ? 6 << 3 | 6 : 9 << 3);
                }
                put<std::uint8_t>(work.data(), message_work::kFlags, low_latency ? 3 : 0);
                if (turn % 2 == 0) {
                    batches.push_back({batch::messages, ranks_.number({}), {}});
                }
                batches.back().works.push_back(work);
            }
            blocks.push_back(ranks_.arguments(rank, batches));
        }
        ranks_.launch(blocks);
        for (int rank = 0; rank < ranks; ++rank) {
            for (int from = 0; from < ranks; ++from) {
                for (std::size_t i = 0; i < bytes; ++i) {
                    ASSERT_EQ(out[at(rank)][at(from) * bytes + i],
                              in[at(from)][at(rank) * bytes + i])
                        << rank << " from " << from << " at " << i;
                }
            }
        }
    }
}

TEST_P(Kernels, GathersUnequally) {
    if (!ranks_.layout().gathers_unequally) {
        GTEST_SKIP() << "not in this release";
    }
    const int ranks = ranks_.ranks();
    // Only one channel: each has works of its own.
    if (ranks_.channels() > 1) {
        GTEST_SKIP() << "one channel tells as much";
    }
    std::vector<std::size_t> sizes;
    std::vector<std::size_t> offsets;
    std::size_t total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        sizes.push_back(at(rank) * 1700 + (rank == 1 ? 0 : 5));
        offsets.push_back(total);
        total += sizes.back();
    }
    std::vector<std::vector<std::uint8_t>> out(at(ranks), std::vector<std::uint8_t>(total));
    std::vector<std::vector<std::byte>> blocks;
    const auto ring_distance = [&](int from, int to) { return (to - from + ranks) % ranks; };
    for (int rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < sizes[at(rank)]; ++i) {
            out[at(rank)][offsets[at(rank)] + i] = static_cast<std::uint8_t>(i * 5 + at(rank));
        }
        Ranks::Batch batch{batch::broadcasts,
                           ranks_.number({Collective::all_gather_v, Operation::none, Type::none,
                                          Algorithm::ring, protocol_}),
                           {}};
        for (int root = 0; root < ranks; ++root) {
            std::vector<std::byte> work(broadcast_work::kBytes);
            put(work.data(), broadcast_work::kDepth, ring_distance(root, rank));
            put(work.data(), broadcast_work::kChunk, 480);
            auto* place = out[at(rank)].data() + offsets[at(root)];
            put(work.data(), broadcast_work::kInput, place);
            put(work.data(), broadcast_work::kOutput, place);
            put(work.data(), broadcast_work::kSize, sizes[at(root)]);
            batch.works.push_back(work);
        }
        blocks.push_back(ranks_.arguments(rank, {batch}));
    }
    ranks_.launch(blocks);
    for (int rank = 1; rank < ranks; ++rank) {
        EXPECT_EQ(out[at(rank)], out[0]) << rank;
    }
    EXPECT_EQ(out[0][offsets.back()], static_cast<std::uint8_t>(ranks - 1));
}

TEST_P(Kernels, AnAbortEndsAKernelWhosePeersNeverCame) {
    auto in = inputs(1000);
    const std::uint32_t number = ranks_.number(
        {Collective::all_reduce, Operation::sum, Type::f32, Algorithm::ring, protocol_});
    auto block =
        ranks_.arguments(0, {{batch::collective,
                              number,
                              {ranks_.collective(in[0].data(), in[0].data(), 1000, 4, grains())}}});
    std::thread kernel([&] {
        run_kernel(ranks_.release(), block.data(), [](const char* why) { ADD_FAILURE() << why; });
    });
    ranks_.abort(0);
    kernel.join();
}

// What a launch of rank 0 alone says when it fails.
std::vector<std::string> failures(const Release& release, std::vector<std::byte> block) {
    std::vector<std::string> said;
    std::mutex mutex;
    EXPECT_THROW(run_kernel(release, block.data(),
                            [&](const char* why) {
                                const std::lock_guard<std::mutex> lock(mutex);
                                said.emplace_back(why);
                            }),
                 std::runtime_error);
    return said;
}

TEST_P(Kernels, WhatIsNotEmulatedIsSaid) {
    const std::uint32_t number = ranks_.number(
        {Collective::all_gather, Operation::none, Type::none, Algorithm::pat, Protocol::simple});
    const auto said = failures(
        ranks_.release(),
        ranks_.arguments(
            0, {{batch::collective, number, {ranks_.collective(nullptr, nullptr, 1, 1, 1)}}}));
    ASSERT_EQ(said.size(), 1u);  // by one channel for all
    EXPECT_TRUE(said[0].starts_with("AllGather PAT SIMPLE is not emulated")) << said[0];
}

TEST_P(Kernels, RegisteredBuffersAreRefused) {
    for (const unsigned flag : {1u << 2, 1u << 3, 1u << 4, 1u << 5}) {
        std::vector<std::byte> work(message_work::kBytes);
        put<std::uint8_t>(work.data(), message_work::kChannels, 1);
        for (std::size_t which = 0; which < 2; ++which) {
            put<std::uint8_t>(work.data(), message_work::kParts + which, 1);
        }
        put(work.data(), message_work::kFlags, static_cast<std::uint8_t>(flag));
        const auto said = failures(
            ranks_.release(), ranks_.arguments(0, {{batch::messages, ranks_.number({}), {work}}}));
        EXPECT_EQ(said, std::vector<std::string>{"registered buffers are not emulated"}) << flag;
    }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
    static const char* const kProtocol[] = {"LL", "LL128", "Simple"};
    const auto& [version, ranks, channels, protocol] = info.param;
    return "V" + std::to_string(version) + "Ranks" + std::to_string(ranks) + "Channels" +
           std::to_string(channels) + kProtocol[static_cast<int>(protocol)];
}

constexpr auto kProtocols = {Protocol::ll, Protocol::ll128, Protocol::simple};
INSTANTIATE_TEST_SUITE_P(Releases, Kernels,
                         ::testing::Combine(::testing::Values(22707, 22809, 22907, 23007),
                                            ::testing::Values(3), ::testing::Values(1, 3),
                                            ::testing::ValuesIn(kProtocols)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Sizes, Kernels,
                         ::testing::Combine(::testing::Values(23007), ::testing::Values(2, 5),
                                            ::testing::Values(1, 3),
                                            ::testing::ValuesIn(kProtocols)),
                         name_of);

}  // namespace
}  // namespace softdev::nccl_kernels::test
