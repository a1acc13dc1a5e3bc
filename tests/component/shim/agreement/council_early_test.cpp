// SPDX-License-Identifier: Apache-2.0
// Those who say hello before this process, which has made their id, has joined itself.
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>

#include "tests/component/shim/agreement/council_scene.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

UniqueFd say_hello(const wire::Trailer& trailer, std::uint32_t rank, std::uint32_t nranks) {
    UniqueFd fd = call(trailer);
    say(fd,
        frame(trailer, rank, wire::Type::Hello, wire::encode(hello_for(trailer, rank, nranks))));
    return fd;
}

// Everything that was said before has been heard: who comes last is sent away.
void let_it_be_heard(const wire::Trailer& trailer) {
    const UniqueFd stranger = call(trailer);
    say(stranger, bytes("GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
    char answer = 0;
    EXPECT_LE(::recv(stranger.get(), &answer, 1, 0), 0);
}

// The leader asks, this one answers, and both are told that they agree.
void expect_agreement(Scene& scene, const UniqueFd& member) {
    scene.join(0)->created();
    wire::Header header;
    std::array<std::byte, wire::kHeaderBytes> data;
    ASSERT_EQ(::recv(member.get(), data.data(), data.size(), MSG_WAITALL),
              static_cast<ssize_t>(data.size()));
    ASSERT_EQ(wire::decode(data, header), wire::Decoded::Ok);
    ASSERT_EQ(header.type, wire::Type::AllHere);
    say(member, frame(trailer_of(scene.id), 1, wire::Type::Ack, {}));
    EXPECT_TRUE(scene.all(Verdict::On)) << scene[0].reason();
}

std::size_t descriptors() {
    std::size_t count = 0;
    DIR* const folder = ::opendir("/proc/self/fd");
    while (::readdir(folder) != nullptr) {
        ++count;
    }
    ::closedir(folder);
    return count;
}

// The first: no thread has listened yet, so both are in the kernel's queue when the leader joins.
TEST(Early, ASecondAttemptThatWaitsInTheQueueIsTheMember) {
    Scene scene(2);
    const wire::Trailer trailer = trailer_of(scene.id);
    say_hello(trailer, 1, 2).reset();
    const UniqueFd member = say_hello(trailer, 1, 2);
    expect_agreement(scene, member);
}

TEST(Early, ASecondAttemptIsTheMember) {
    Scene running(2);  // for the thread
    running.join_all();
    Scene scene(2);
    const wire::Trailer trailer = trailer_of(scene.id);
    UniqueFd first = say_hello(trailer, 1, 2);
    let_it_be_heard(trailer);
    first.reset();
    const UniqueFd member = say_hello(trailer, 1, 2);
    let_it_be_heard(trailer);
    expect_agreement(scene, member);
}

TEST(Early, ThoseWhoLeaveAgainLeaveNothingBehind) {
    Scene running(2);
    running.join_all();
    ASSERT_TRUE(running.all(Verdict::On));
    constexpr std::uint32_t kMembers = 50;
    const wire::Trailer trailer = trailer_of(make_id());
    const std::size_t before = descriptors();
    {
        std::vector<UniqueFd> members;
        for (std::uint32_t rank = 1; rank <= kMembers; ++rank) {
            members.push_back(say_hello(trailer, rank, kMembers + 1));
        }
        let_it_be_heard(trailer);
        EXPECT_TRUE(eventually([&] { return descriptors() == before + 2 * kMembers; }));
    }
    EXPECT_TRUE(eventually([&] { return descriptors() == before; })) << descriptors() - before;
}

// Those who wait for a leader that has died before it joined, and whose id is forgotten.
TEST(Early, AForgottenIdIsWaitedForNoMore) {
    Scene running(2);
    running.join_all();
    ASSERT_TRUE(running.all(Verdict::On));
    const wire::Trailer trailer = trailer_of(make_id());
    const UniqueFd member = say_hello(trailer, 1, 2);
    let_it_be_heard(trailer);
    for (int i = 0; i < 5000; ++i) {
        make_id();
    }
    pollfd entry{member.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
}

}  // namespace
}  // namespace deft::agreement::test
