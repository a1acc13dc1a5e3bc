// SPDX-License-Identifier: Apache-2.0
// What NCCL was told is sent arrives (docs/alive.md), on a virtual clock.
#include <gtest/gtest.h>

#include "deft/abi/net.h"
#include "tests/component/plugin/core/one_message.h"

namespace deft::net::testing {
namespace {

// A small message on one link, done for NCCL before it has come.
struct Promise : OneMessage {
    explicit Promise(Nanos limit = Patience::kKernel) : OneMessage({link(1)}, limit) {
        fake().hangs = true;
        data.resize(64);
        std::fill(data.begin(), data.end(), std::byte{7});
    }
    FakeLink& fake() { return wire.links[0]; }
    void promise() {
        send();
        drive(kMillisecond);
        EXPECT_TRUE(sent);
    }
    void close() {
        ASSERT_TRUE(wire.sender->owes(0));
        wire.sender->leave();
        std::fill(data.begin(), data.end(), std::byte{0});  // NCCL's again
    }
    bool came() const { return received && buffer[63] == std::byte{7}; }
};

TEST(Promised, AClosedSenderBringsItOnceThereIsAPath) {
    Promise scene;
    scene.fake().black_hole = true;
    scene.fake().times_out = 10 * kSecond;
    scene.promise();
    scene.post();
    scene.drive(14 * kSecond);
    ASSERT_NE(scene.wire.sender->state(0), PathState::Up);
    scene.close();
    scene.drive(10 * kMinute);
    EXPECT_FALSE(scene.wire.sender->over());
    scene.fake().black_hole = false;
    scene.drive(5 * kSecond, [&] { return scene.wire.sender->over(); });
    EXPECT_TRUE(scene.wire.sender->over());
    EXPECT_TRUE(scene.fake().left_to_kernel);
    scene.wire.sender.reset();
    scene.drive(kSecond);
    EXPECT_TRUE(scene.came());
}

TEST(Promised, APathWhoseLinkLosesItsCarrierIsTheKernels) {
    Promise scene;
    scene.fake().carrier = false;
    scene.promise();
    scene.post();
    scene.drive(5 * kSecond);
    EXPECT_EQ(scene.wire.sender->state(0), PathState::Up);
    scene.close();
    EXPECT_TRUE(scene.fake().left_to_kernel);
    scene.drive(kMinute);
    EXPECT_EQ(scene.wire.sender->state(0), PathState::Up);
    scene.fake().carrier = true;
    scene.drive(kSecond);
    EXPECT_TRUE(scene.came());
    EXPECT_GE(scene.fake().connections, 2) << "the kernel's next try may be a minute away";
    EXPECT_TRUE(scene.wire.sender->over());
}

// Once NCCL waits, a new path is the quickest.
TEST(Promised, APathIsNotKeptForItWhileNcclWaits) {
    Promise scene;
    scene.fake().carrier = false;
    scene.promise();
    scene.data.resize(kLarge);
    scene.send();
    scene.drive(10 * kMillisecond);
    EXPECT_NE(scene.wire.sender->state(0), PathState::Up);
}

TEST(Promised, NothingIsOwedOnceThePeerHasIt) {
    Promise scene;
    scene.promise();
    scene.drive(10 * kMillisecond);
    EXPECT_FALSE(scene.wire.sender->owes(0));
}

TEST(Promised, ToAPeerThatIsGoneItEnds) {
    for (const bool closed : {true, false}) {
        Promise scene;
        scene.fake().black_hole = true;
        scene.fake().times_out = 10 * kSecond;
        scene.promise();
        scene.drive(14 * kSecond);
        scene.close();
        closed ? scene.wire.receiver.reset() : void(scene.wire.receiver_listens = false);
        scene.fake().black_hole = false;
        scene.drive(kMinute, [&] { return scene.wire.sender->over(); });
        EXPECT_TRUE(scene.wire.sender->over()) << closed;
    }
}

TEST(Promised, PatienceEnds) {
    Promise scene(kMinute);
    scene.fake().black_hole = true;
    scene.fake().times_out = 10 * kSecond;
    scene.promise();
    scene.drive(14 * kSecond);
    scene.close();
    ::testing::internal::CaptureStderr();
    scene.drive(2 * kMinute, [&] { return scene.wire.sender->over(); });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(scene.wire.sender->over());
    EXPECT_EQ(count(said, "did not get to the peer"), 1U) << said;
}

}  // namespace
}  // namespace deft::net::testing
