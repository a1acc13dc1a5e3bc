// SPDX-License-Identifier: Apache-2.0
// Several ranks in one process: whom the C API's calls concern.
#include <optional>

#include "shim/control/directors.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

// One of the process's ranks, in a communicator of its own whose leader the test plays.
class Rank : public Follower {
public:
    explicit Rank(int device) {
        SetUp();
        job_.emplace();
        made_.table = &fake_table();
        made_.serial = 1;
        made_.rank = 1;
        made_.nranks = kRanks;
        made_.device = device;
        introduce(made_, &scene_[1]);
        director_ = made_.director.load();
    }
    ~Rank() override { TearDown(); }
    void TestBody() override {}
    void bring_into_force() {
        stage();
        order(Kind::Arm, ordinal_);
    }
    void iteration() { job_->iteration(*director_, ordinal_); }
    void call(std::uint64_t count) { job_->call(*director_, ordinal_++, count); }

private:
    Communicator made_;
    std::optional<Job> job_;
};

// What a thread is told that has the context of this device; -1: none.
template <class Function>
auto on_device(int device, Function function) {
    decltype(function()) told{};
    std::thread([&] {
        CUcontext context = nullptr;
        EXPECT_TRUE(device < 0 || cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
        EXPECT_TRUE(device < 0 || cuCtxSetCurrent(context) == CUDA_SUCCESS);
        told = function();
    }).join();
    return told;
}

// Each device has a training thread of its own.
TEST(Devices, ARankIsNotAnsweredForByAnother) {
    Rank here(0);
    Rank there(1);
    here.bring_into_force();
    here.iteration();  // late: there is nothing yet to deliver
    EXPECT_TRUE(on_device(1, should_step));
    EXPECT_EQ(on_device(1, flush), 0);
    EXPECT_FALSE(on_device(0, should_step)) << "the other has used up its zeros";
    EXPECT_EQ(on_device(0, flush), 2) << "the other has ended its plan";
}

class Anywhere : public ::testing::TestWithParam<int> {};

// A thread without a context, and one on a device that has no communicator.
TEST_P(Anywhere, WhereItCannotBeToldWhoAsksAllAreMeant) {
    Rank here(0);
    should_step();  // what earlier tests have left
    here.bring_into_force();
    here.iteration();
    EXPECT_FALSE(on_device(GetParam(), should_step));
    EXPECT_EQ(on_device(GetParam(), flush), 2);
}

INSTANTIATE_TEST_SUITE_P(On, Anywhere, ::testing::Values(-1, 2), [](const auto& info) {
    return info.param < 0 ? "NoDevice" : "AThirdDevice";
});

// Two communicators of one rank.
TEST(Devices, AFlushThatRefusesHasDoneNothing) {
    Rank between(0);
    Rank amid(0);
    between.bring_into_force();
    between.iteration();
    amid.bring_into_force();
    amid.iteration();
    on_device(0, should_step);  // the job tells that both are between two iterations
    amid.call(kCounts[0]);
    EXPECT_EQ(on_device(0, flush), -1);
    between.iteration();  // its plan takes it
    amid.call(kCounts[1]);
}

}  // namespace
}  // namespace deft::director::test
