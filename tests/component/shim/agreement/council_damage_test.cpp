// SPDX-License-Identifier: Apache-2.0
// Frames that arrive otherwise than they were sent: no two ranks may act on different proposals.
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "tests/component/shim/agreement/council_scene.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

// The leader is deft's, the only member is the test.
class Leader : public ::testing::Test {
protected:
    Leader() : scene(2), trailer(trailer_of(scene.id)), fd(call(trailer)), ear(fd) {
        scene.join(0)->created();
        say(fd, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 2))));
        (void)ear.next(wire::Type::AllHere);
        say(fd, frame(trailer, 1, wire::Type::Ack, {}));
        EXPECT_TRUE(scene.all(Verdict::On));
    }
    wire::Prepare prepared() {
        EXPECT_TRUE(scene[0].propose(proposal(7)));
        payload = ear.next(wire::Type::Prepare);
        wire::Prepare prepare;
        EXPECT_TRUE(wire::decode(payload, prepare));
        return prepare;
    }
    bool committed() {
        EXPECT_TRUE(eventually([&] { return scene.member(0).decisions().count(7) == 1; }));
        return scene.member(0).decisions()[7];
    }
    Scene scene;
    wire::Trailer trailer;
    UniqueFd fd;
    Ear ear;
    std::vector<std::byte> payload;
};

TEST_F(Leader, CommitsWhatAllHaveAlike) {
    const wire::Prepare prepare = prepared();
    EXPECT_EQ(prepare.digest, wire::digest_of(7, 100, bytes("plan")));
    say(fd,
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{7, true, prepare.digest})));
    EXPECT_TRUE(committed());
    wire::Word word;
    EXPECT_TRUE(wire::decode(ear.next(wire::Type::Decision), word));
    EXPECT_TRUE(word.yes);
    EXPECT_EQ(word.digest, prepare.digest);
}

// Keeps the agreement thread in a callback.
class Busy final : public Member {
public:
    Answer prepare(const Proposal& /*proposal*/) noexcept override { return Answer::Yes; }
    void decided(std::uint64_t /*serial*/, bool /*commit*/) noexcept override {}
    void heard(int /*rank*/, std::span<const std::byte> /*report*/) noexcept override {
        inside = true;
        while (!let_go) {
            std::this_thread::sleep_for(1ms);
        }
    }
    std::atomic<bool> inside{false};
    std::atomic<bool> let_go{false};
};

// Its own hook goes on by the old plan, though all have said yes by then.
TEST_F(Leader, CancelsWhatItsOwnHookHasGivenUp) {
    Busy busy;
    scene[0].detach(&scene.member(0));
    scene[0].attach(&busy);
    const wire::Prepare prepare = prepared();
    std::vector<std::byte> both = frame(trailer, 1, wire::Type::Report, bytes("busy"));
    const std::vector<std::byte> answer =
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{7, true, prepare.digest}));
    both.insert(both.end(), answer.begin(), answer.end());
    say(fd, both);  // read in one turn of the thread
    ASSERT_TRUE(eventually([&] { return busy.inside.load(); }));
    EXPECT_EQ(scene[0].wait_decision(7, Clock::now()), Decision::Lost);
    busy.let_go = true;
    wire::Word word;
    EXPECT_TRUE(wire::decode(ear.next(wire::Type::Decision), word));
    EXPECT_FALSE(word.yes);
    scene[0].detach(&busy);
}

TEST_F(Leader, CancelsWhatAMemberReadOtherwise) {
    (void)prepared();
    // The member has read another switch call.
    say(fd, frame(trailer, 1, wire::Type::Answer,
                  wire::encode(wire::Word{7, true, wire::digest_of(7, 101, bytes("plan"))})));
    EXPECT_FALSE(committed());
}

// A rank that comes back repeats its answer, and the leader may have had it.
TEST_F(Leader, PassesOverAnAnswerToAnEarlierProposal) {
    const wire::Prepare first = prepared();
    const auto answer =
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{7, true, first.digest}));
    say(fd, answer);
    EXPECT_TRUE(committed());
    EXPECT_TRUE(eventually([&] { return scene[0].propose(proposal(8)); }));
    wire::Prepare second;
    const std::vector<std::byte> said = ear.next(wire::Type::Prepare);
    ASSERT_TRUE(wire::decode(said, second));
    say(fd, answer);
    say(fd,
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{8, true, second.digest})));
    EXPECT_TRUE(eventually([&] { return scene.member(0).decisions().count(8) == 1; }));
    EXPECT_TRUE(scene.member(0).decisions()[8]);
}

TEST(Leaders, CountARanksYesOnce) {
    Scene scene(3);
    scene.member(2).answer_with({Answer::Later});
    const wire::Trailer trailer = trailer_of(scene.id);
    const UniqueFd fd = call(trailer);
    Ear ear(fd);
    scene.join(0)->created();
    scene.join(2)->created();
    say(fd, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 3))));
    (void)ear.next(wire::Type::AllHere);
    say(fd, frame(trailer, 1, wire::Type::Ack, {}));
    ASSERT_TRUE(scene.all(Verdict::On));
    ASSERT_TRUE(scene[0].propose(proposal(7)));
    wire::Prepare prepare;
    const std::vector<std::byte> said = ear.next(wire::Type::Prepare);
    ASSERT_TRUE(wire::decode(said, prepare));
    const auto yes =
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{7, true, prepare.digest}));
    say(fd, yes);
    say(fd, yes);
    // A report is heard behind the answers.
    say(fd, frame(trailer, 1, wire::Type::Report, bytes("both are there")));
    ASSERT_TRUE(eventually([&] { return !scene.member(0).heard().empty(); }));
    ASSERT_TRUE(eventually([&] { return scene.member(2).asked().size() == 1; }));
    EXPECT_TRUE(scene.member(0).decisions().empty()) << "rank 2 has not answered";
    scene[2].answer(7, false);
    EXPECT_TRUE(eventually([&] { return scene.member(0).decisions().count(7) == 1; }));
    EXPECT_FALSE(scene.member(0).decisions()[7]);
}

TEST_F(Leader, TakesNoAnswerFromADamagedFrame) {
    const wire::Prepare prepare = prepared();
    std::vector<std::byte> answer =
        frame(trailer, 1, wire::Type::Answer, wire::encode(wire::Word{7, false, prepare.digest}));
    answer[wire::kHeaderBytes + 8] ^= std::byte{1};  // no becomes yes
    say(fd, answer);
    EXPECT_FALSE(committed());
    EXPECT_TRUE(eventually([&] { return !scene[0].open(); }));
    EXPECT_NE(scene[0].reason().find("damaged"), std::string::npos) << scene[0].reason();
}

// The member is deft's, the leader is the test.
class Follower : public ::testing::Test {
protected:
    Follower() {
        listener = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_TRUE(random_bytes(trailer.nonce.data(), trailer.nonce.size()));
        trailer.count = 1;
        wire::Endpoint& endpoint = trailer.endpoints[0];
        EXPECT_TRUE(parse_address("127.0.0.1", endpoint.address));
        sockaddr_storage storage;
        socklen_t length = to_sockaddr(endpoint.address, 0, storage);
        auto* const address = reinterpret_cast<sockaddr*>(&storage);
        EXPECT_EQ(::bind(listener.get(), address, length), 0);
        EXPECT_EQ(::listen(listener.get(), 1), 0);
        EXPECT_EQ(::getsockname(listener.get(), address, &length), 0);
        Address bound;
        EXPECT_TRUE(from_sockaddr(address, bound, &endpoint.port));
        std::array<std::byte, wire::kTrailerBytes> place;
        wire::encode(trailer, place);
        deft_nccl_unique_id_t id{};
        std::memcpy(id.internal + wire::kTrailerAt, place.data(), place.size());
        council = kept(agreement::join(id, 2, 1, terms()));
        council->attach(&member);
        council->created();
        fd = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        ear.emplace(fd);
        (void)ear->next(wire::Type::Hello);
        say(fd, frame(trailer, 1, wire::Type::AllHere, {}));
        (void)ear->next(wire::Type::Ack);
        say(fd, frame(trailer, 1, wire::Type::Verdict, wire::encode(wire::Verdict{true, ""})));
        EXPECT_TRUE(eventually([&] { return council->verdict() == Verdict::On; }));
    }
    ~Follower() override {
        council->detach(&member);
        council->leave();
    }
    std::vector<std::byte> prepare_frame(std::uint64_t digest) {
        return frame(trailer, 1, wire::Type::Prepare,
                     wire::encode(wire::Prepare{7, 100, digest, std::span(body)}));
    }
    bool turned_away() {
        return eventually([&] { return !council->open(); });
    }
    const std::vector<std::byte> body = bytes("plan");
    const std::uint64_t digest = wire::digest_of(7, 100, body);
    wire::Trailer trailer;
    UniqueFd listener;
    UniqueFd fd;
    Recorder member;
    Council* council = nullptr;
    std::optional<Ear> ear;
};

TEST_F(Follower, AnswersWithTheDigestOfWhatItHas) {
    say(fd, prepare_frame(digest));
    wire::Word word;
    ASSERT_TRUE(wire::decode(ear->next(wire::Type::Answer), word));
    EXPECT_TRUE(word.yes);
    EXPECT_EQ(word.digest, digest);
    say(fd, frame(trailer, 1, wire::Type::Decision, wire::encode(wire::Word{7, true, digest})));
    EXPECT_TRUE(eventually([&] { return member.decisions().count(7) == 1; }));
    EXPECT_TRUE(member.decisions()[7]);
}

TEST_F(Follower, RefusesAProposalThatIsNotItsDigests) {
    say(fd, prepare_frame(digest ^ 1));
    EXPECT_TRUE(turned_away());
    EXPECT_TRUE(member.asked().empty());
}

TEST_F(Follower, RefusesADecisionAboutAnotherProposal) {
    say(fd, prepare_frame(digest));
    (void)ear->next(wire::Type::Answer);
    say(fd, frame(trailer, 1, wire::Type::Decision, wire::encode(wire::Word{7, true, digest ^ 1})));
    EXPECT_TRUE(turned_away());
    EXPECT_TRUE(member.decisions().empty());
}

TEST_F(Follower, RefusesADamagedProposal) {
    std::vector<std::byte> damaged = prepare_frame(digest);
    damaged[wire::kHeaderBytes + 8] ^= std::byte{4};  // the switch call
    say(fd, damaged);
    EXPECT_TRUE(turned_away());
    EXPECT_TRUE(member.asked().empty());
    EXPECT_NE(council->reason().find("damaged"), std::string::npos) << council->reason();
}

// A frame as the stream sends it, with each of its bits flipped once.
TEST(Stream, TakesNoFrameWithAFlippedBit) {
    const std::vector<std::byte> payload = bytes("the plan and its switch call");
    const std::vector<std::byte> whole = frame({}, 1, wire::Type::Prepare, payload);
    for (std::size_t bit = 0; bit <= 8 * whole.size(); ++bit) {
        int ends[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        Stream stream{UniqueFd(ends[0])};
        const UniqueFd other(ends[1]);
        std::vector<std::byte> sent = whole;
        const bool flipped = bit < 8 * whole.size();
        if (flipped) {
            sent[bit / 8] ^= std::byte(1U << bit % 8);
        }
        say(other, sent);
        ASSERT_TRUE(stream.fill());
        wire::Header header;
        std::span<const std::byte> got;
        const Stream::Next next = stream.next(header, got);
        if (flipped) {
            EXPECT_NE(next, Stream::Next::Frame) << "bit " << bit;
        } else {
            EXPECT_EQ(next, Stream::Next::Frame);
        }
    }
}

TEST(Digest, DiffersWhereAnythingDoes) {
    const std::vector<std::byte> body = bytes("plan");
    const std::uint64_t digest = wire::digest_of(7, 100, body);
    EXPECT_EQ(digest, wire::digest_of(7, 100, bytes("plan")));
    EXPECT_NE(digest, wire::digest_of(100, 7, body));
    for (unsigned bit = 0; bit < 64; ++bit) {
        const std::uint64_t flip = std::uint64_t{1} << bit;
        EXPECT_NE(digest, wire::digest_of(7 ^ flip, 100, body));
        EXPECT_NE(digest, wire::digest_of(7, 100 ^ flip, body));
    }
    for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
        std::vector<std::byte> other = body;
        other[bit / 8] ^= std::byte(1U << bit % 8);
        EXPECT_NE(digest, wire::digest_of(7, 100, other));
    }
}

}  // namespace
}  // namespace deft::agreement::test
