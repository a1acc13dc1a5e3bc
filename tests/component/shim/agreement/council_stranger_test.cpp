// SPDX-License-Identifier: Apache-2.0
// What comes in through the rendezvous from those who do not belong there, or behave badly.
#include <poll.h>
#include <sys/socket.h>

#include "tests/component/shim/agreement/council_scene.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

// Plays rank 1 of 2 until the verdict is about to come.
UniqueFd play_member(const deft_nccl_unique_id_t& id) {
    const wire::Trailer trailer = trailer_of(id);
    UniqueFd fd = call(trailer);
    say(fd, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 2))));
    std::array<std::byte, wire::kHeaderBytes + 4> all_here;
    EXPECT_EQ(::recv(fd.get(), all_here.data(), all_here.size(), MSG_WAITALL),
              static_cast<ssize_t>(all_here.size()));
    say(fd, frame(trailer, 1, wire::Type::Ack, {}));
    return fd;
}

// True when the other end has closed; whatever it says first is skipped.
bool hung_up(const UniqueFd& fd) {
    const auto deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) {
        pollfd entry{fd.get(), POLLIN, 0};
        char buffer[4096];
        if (::poll(&entry, 1, 100) > 0 &&
            ::recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT) <= 0) {
            return true;
        }
    }
    return false;
}

// Every case must leave the communicator as it would be without the stranger.
class Strangers : public ::testing::Test {
protected:
    Strangers() : scene(3), trailer(trailer_of(scene.id)), before(strangers()) {
        scene.join(0);
        scene.join(1);
    }
    ~Strangers() override {
        scene.join(2);
        EXPECT_TRUE(scene.all(Verdict::On));
    }
    static std::uint64_t strangers() { return Service::process().strangers(); }
    // The connection goes first.
    void expect_counted() const {
        EXPECT_TRUE(eventually([this] { return strangers() > before; }));
    }

    Scene scene;
    wire::Trailer trailer;
    std::uint64_t before;
};

TEST_F(Strangers, GarbageIsDropped) {
    const UniqueFd fd = call(trailer);
    say(fd, bytes("GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
    EXPECT_TRUE(hung_up(fd));
    expect_counted();
}

TEST_F(Strangers, AWrongSecretIsDropped) {
    const UniqueFd fd = call(trailer);
    wire::Trailer other = trailer;
    other.nonce[5] ^= 1;
    say(fd, frame(other, 2, wire::Type::Hello, wire::encode(hello_for(other, 2, 3))));
    EXPECT_TRUE(hung_up(fd));
    expect_counted();
}

TEST_F(Strangers, AnotherFrameThanHelloIsDropped) {
    const UniqueFd fd = call(trailer);
    say(fd, frame(trailer, 1, wire::Type::Ack, {}));
    EXPECT_TRUE(hung_up(fd));
}

TEST_F(Strangers, AHugeLengthIsDropped) {
    const UniqueFd fd = call(trailer);
    std::vector<std::byte> data = frame(trailer, 2, wire::Type::Hello, {});
    data[4] = data[5] = data[6] = data[7] = std::byte{0xff};
    say(fd, data);
    EXPECT_TRUE(hung_up(fd));
}

TEST_F(Strangers, HalfAHelloDoesNotHoldAnybodyUp) {
    const UniqueFd fd = call(trailer);
    const std::vector<std::byte> whole =
        frame(trailer, 2, wire::Type::Hello, wire::encode(hello_for(trailer, 2, 3)));
    say(fd, std::span(whole).first(whole.size() / 2));
    EXPECT_TRUE(hung_up(fd));  // after its time
}

TEST_F(Strangers, AFloodOfSilentConnectionsIsSurvived) {
    std::vector<UniqueFd> flood;
    for (int i = 0; i < 400; ++i) {
        flood.push_back(call(trailer));
    }
    scene.join(2);
    EXPECT_TRUE(scene.all(Verdict::On));
    scene.leave(2);
    EXPECT_TRUE(eventually([&] { return !scene[0].open(); }));
    // A new communicator while they are still there.
    Scene other(2);
    other.join_all();
    EXPECT_TRUE(other.all(Verdict::On));
    scene.leave(0);
    scene.leave(1);
    scene.councils.assign(3, nullptr);
    scene.id = make_id();
    scene.join(0);
    scene.join(1);
}

// Somebody who is slow to say hello is not pushed out by a flood from another address.
TEST_F(Strangers, AFloodFromOneAddressLeavesRoomForOthers) {
    scene.leave(1);
    scene.councils[1] = nullptr;
    const std::vector<std::byte> hello =
        frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 3)));
    const UniqueFd slow = call(trailer);
    say(slow, std::span(hello).first(20));
    std::vector<UniqueFd> flood;
    for (int i = 0; i < 600; ++i) {
        flood.push_back(call(trailer, "127.0.0.2"));
    }
    EXPECT_TRUE(eventually([&] { return strangers() >= before + 300; }));
    say(slow, std::span(hello).subspan(20));
    scene.join(2);
    std::array<std::byte, wire::kHeaderBytes + 4> all_here;
    EXPECT_EQ(::recv(slow.get(), all_here.data(), all_here.size(), MSG_WAITALL),
              static_cast<ssize_t>(all_here.size()));
    say(slow, frame(trailer, 1, wire::Type::Ack, {}));
    EXPECT_TRUE(scene.all(Verdict::On));
    scene.leave(2);
    scene.leave(0);
    scene.councils.assign(3, nullptr);
    scene.id = make_id();
    scene.join(0);
    scene.join(1);
}

TEST_F(Strangers, AHelloByteByByteIsGoodEnough) {
    scene.leave(1);
    scene.councils[1] = nullptr;
    const UniqueFd fd = call(trailer);
    for (const std::byte byte :
         frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 3)))) {
        say(fd, std::span(&byte, 1));
    }
    // Now it is rank 1 for the leader; when it goes, rank 1 may come again.
    std::this_thread::sleep_for(50ms);
    (void)::shutdown(fd.get(), SHUT_RDWR);
    scene.join(1);
}

TEST_F(Strangers, ALateTwinOfAMemberIsSentAway) {
    scene.join(2);
    ASSERT_TRUE(scene.all(Verdict::On));
    const UniqueFd fd = call(trailer);
    say(fd, frame(trailer, 2, wire::Type::Hello, wire::encode(hello_for(trailer, 2, 3))));
    std::array<std::byte, wire::kHeaderBytes> header;
    ASSERT_EQ(::recv(fd.get(), header.data(), header.size(), MSG_WAITALL),
              static_cast<ssize_t>(header.size()));
    wire::Header decoded;
    ASSERT_EQ(wire::decode(header, decoded), wire::Decoded::Ok);
    EXPECT_EQ(decoded.type, wire::Type::Verdict);
    EXPECT_TRUE(scene[0].open());
    scene.leave(2);
    scene.leave(1);
    scene.leave(0);
    scene.councils.assign(3, nullptr);
    scene.id = make_id();
    scene.join(0);
    scene.join(1);
}

TEST(BadMember, NonsenseAfterTheHelloTurnsItOut) {
    for (const wire::Type type : {wire::Type::Hello, wire::Type::Verdict, wire::Type::Decision}) {
        Scene scene(2);
        scene.join(0)->created();
        const wire::Trailer trailer = trailer_of(scene.id);
        const std::vector<std::byte> hello = wire::encode(hello_for(trailer, 1, 2));
        const UniqueFd fd = play_member(scene.id);
        ASSERT_TRUE(scene.all(Verdict::On));
        say(fd, frame(trailer, 1, type,
                      type == wire::Type::Hello     ? hello
                      : type == wire::Type::Verdict ? wire::encode(wire::Verdict{true, ""})
                                                    : wire::encode(wire::Word{1, true})));
        EXPECT_TRUE(hung_up(fd));
        EXPECT_TRUE(eventually([&] { return scene.member(0).closings().size() == 1; }));
        EXPECT_NE(scene[0].reason().find("nonsense"), std::string::npos) << scene[0].reason();
    }
}

TEST(BadMember, AMemberThatReadsNothingCostsNoMoreThanItsBuffer) {
    Scene scene(2);
    scene.join(0)->created();
    const UniqueFd fd = play_member(scene.id);
    ASSERT_TRUE(scene.all(Verdict::On));
    const std::string body(kMaxBody, 'x');
    std::uint64_t serial = 0;
    for (; serial < 50 && scene[0].open(); ++serial) {
        Proposal big = proposal(serial + 1, 1, body);
        big.patience = 1ms;
        if (scene[0].propose(std::move(big))) {
            EXPECT_TRUE(eventually([&] {
                return scene.member(0).decisions().count(serial + 1) == 1 || !scene[0].open();
            }));
        }
    }
    EXPECT_TRUE(eventually([&] { return !scene[0].open(); }));
    for (const auto& [number, commit] : scene.member(0).decisions()) {
        EXPECT_FALSE(commit) << number;
    }
}

TEST(BadMember, AFloodOfReportsDoesNotStopTheOthers) {
    Scene scene(2);
    scene.join(0)->created();
    const UniqueFd fd = play_member(scene.id);
    ASSERT_TRUE(scene.all(Verdict::On));
    std::atomic<bool> stop{false};
    std::thread flood([&] {
        const std::vector<std::byte> report =
            frame(trailer_of(scene.id), 1, wire::Type::Report, std::vector<std::byte>(1000));
        while (!stop) {
            say(fd, report);
        }
    });
    Scene other(3);
    other.join_all();
    EXPECT_TRUE(other.all(Verdict::On));
    EXPECT_TRUE(other[0].propose(proposal(1)));
    EXPECT_TRUE(eventually([&] { return other.member(2).decisions().count(1) == 1; }));
    stop = true;
    (void)::shutdown(fd.get(), SHUT_RDWR);
    flood.join();
}

}  // namespace
}  // namespace deft::agreement::test
