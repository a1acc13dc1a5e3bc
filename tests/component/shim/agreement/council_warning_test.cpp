// SPDX-License-Identifier: Apache-2.0
// What the log says of a communicator that deft cannot be used for.
#include "tests/component/shim/agreement/council_scene.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

constexpr char kForwarded[] = "not every rank of a communicator can use deft";

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
        ++found;
    }
    return found;
}

// A communicator is used for one barrier and destroyed: whether its ranks have agreed by then is
// chance, and its end is no reason to warn.
TEST(CouncilWarning, AnEndIsNoneAndLeavesItToWhatFollows) {
    testing::internal::CaptureStderr();
    {
        Scene scene(3);
        scene.join(0)->created();
        scene.join(1)->created();  // says hello, or comes as the leader goes
        scene.leave(0);
        ASSERT_TRUE(scene.all(Verdict::Off));
        EXPECT_NE(scene[1].reason().find("has ended its communicator"), std::string::npos)
            << scene[1].reason();
        scene.join(2)->created();  // comes late
        ASSERT_TRUE(scene.all(Verdict::Off));
    }
    {
        Scene scene(2);
        scene.join(0)->created();
        const wire::Trailer trailer = trailer_of(scene.id);
        const UniqueFd member = call(trailer);
        say(member, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 2))));
        std::array<std::byte, wire::kHeaderBytes + 4> all_here;
        ASSERT_EQ(::recv(member.get(), all_here.data(), all_here.size(), MSG_WAITALL),
                  static_cast<ssize_t>(all_here.size()));
        say(member, frame(trailer, 1, wire::Type::Leave, {}));
        ASSERT_TRUE(scene.all(Verdict::Off));
        EXPECT_NE(scene[0].reason().find("has left"), std::string::npos) << scene[0].reason();
    }
    const std::string ends = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count(ends, "WARN"), 0u) << ends;
    EXPECT_EQ(count(ends, "ends before its ranks have agreed"), 3u) << ends;
    EXPECT_EQ(count(ends, kForwarded), 0u) << ends;

    testing::internal::CaptureStderr();
    {
        Scene scene(2);
        scene.join(0)->created();
        scene.join(1, terms("DEFT_MODE=exact"))->created();
        ASSERT_TRUE(scene.all(Verdict::Off));
    }
    const std::string differs = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count(differs, "WARN"), 1u) << differs;
    EXPECT_EQ(count(differs, kForwarded), 2u) << differs;
}

}  // namespace
}  // namespace deft::agreement::test
