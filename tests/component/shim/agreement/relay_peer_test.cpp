// SPDX-License-Identifier: Apache-2.0
// Processes of the job and a peer that the test plays: a leader, another host, a stranger.
#include <chrono>
#include <thread>

#include "base/random.h"
#include "shim/agreement/neighbours.h"
#include "tests/component/shim/agreement/rank_process.h"
#include "tests/component/shim/agreement/raw_peer.h"

namespace deft::agreement::test {
namespace {

std::vector<std::byte> name(std::uint64_t process) {
    return *wire::make_frame(wire::Type::Name, 0, 0, wire::encode_name(process));
}

// A leader that the test plays, of one process that holds rank 1 of 2.
class PlayedLeader : public ::testing::Test {
protected:
    PlayedLeader() {
        EXPECT_TRUE(parse_address("127.0.0.1", trailer.endpoints[0].address));
        listen();
        trailer.count = 1;
        EXPECT_TRUE(random_bytes(trailer.nonce.data(), trailer.nonce.size()));
        wire::encode(trailer, std::as_writable_bytes(std::span(id.internal))
                                  .subspan<wire::kTrailerAt, wire::kTrailerBytes>());
    }
    // At the trailer's port, once it has one.
    void listen() {
        wire::Endpoint& endpoint = trailer.endpoints[0];
        door = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int reuse = 1;
        EXPECT_EQ(::setsockopt(door.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)), 0);
        sockaddr_storage storage;
        socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
        auto* const address = reinterpret_cast<sockaddr*>(&storage);
        EXPECT_EQ(::bind(door.get(), address, length), 0);
        EXPECT_EQ(::listen(door.get(), 16), 0);
        length = sizeof(storage);
        EXPECT_EQ(::getsockname(door.get(), address, &length), 0);
        Address bound;
        EXPECT_TRUE(from_sockaddr(address, bound, &endpoint.port));
    }
    void let_in() {
        EXPECT_EQ(member.ask("join a " + to_hex(id) + " 2 1"), "ok");
        answer_the_door();
    }
    void answer_the_door() {
        fd = UniqueFd(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
        ear.emplace(fd);
        EXPECT_TRUE(ear->hears(wire::Type::Name));  // before any rank
        EXPECT_TRUE(ear->hears(wire::Type::Hello));
    }
    void tell(wire::Type type, std::span<const std::byte> payload) {
        say(fd, frame(trailer, 1, type, payload));
    }
    void acknowledge() {
        tell(wire::Type::AllHere, {});
        EXPECT_TRUE(ear->hears(wire::Type::Ack));
    }
    // The rank says yes, and does not hear what becomes of it.
    wire::Word promised() {
        let_in();
        acknowledge();
        tell(wire::Type::Verdict, wire::encode(wire::Verdict{true, "", false, false}));
        EXPECT_EQ(member.ask("on a"), "ok");
        const std::vector<std::byte> body = bytes("plan");
        const wire::Word commit{7, true, wire::digest_of(7, 100, body)};
        tell(wire::Type::Prepare, wire::encode(wire::Prepare{7, 100, commit.digest, body}));
        EXPECT_TRUE(ear->hears(wire::Type::Answer));
        return commit;
    }
    // As if its process had ended.
    void go() {
        door.reset();
        ear.reset();
        fd.reset();
    }
    // Where the process lets other hosts in.
    wire::Trailer offer() {
        say(fd, *wire::make_frame(wire::Type::Serve, 0, 0, {}));
        wire::Trailer where;
        EXPECT_TRUE(wire::decode_offer(ear->next(wire::Type::Offer), where));
        return where;
    }
    int connections() { return std::stoi(member.ask("tcp")); }

    RankChild member;
    wire::Trailer trailer;
    deft_nccl_unique_id_t id{};
    UniqueFd door;
    UniqueFd fd;
    std::optional<Ear> ear;
};

// The connection stays, for other ranks: only the word tells the leader.
TEST_F(PlayedLeader, IsToldWhenARankGoesOffAlone) {
    let_in();
    acknowledge();
    tell(wire::Type::Prepare, {});  // for those whom the leader has heard: passed over
    tell(wire::Type::Answer, {});   // nonsense
    EXPECT_NE(member.ask("off a").find("sent nonsense"), std::string::npos);
    EXPECT_TRUE(ear->hears(wire::Type::Leave));
}

TEST_F(PlayedLeader, IsToldWhenARankAgreesOnNothingMore) {
    let_in();
    acknowledge();
    tell(wire::Type::Verdict, wire::encode(wire::Verdict{true, "", false, false}));
    EXPECT_EQ(member.ask("on a"), "ok");
    tell(wire::Type::Prepare, {});  // nonsense
    EXPECT_EQ(member.ask("closed a"), "ok");
    EXPECT_TRUE(ear->hears(wire::Type::Leave));
}

// Refused once may be refused for a moment: a firewall that is loaded, a full queue.
TEST_F(PlayedLeader, IsSoughtForAWhileWhereItsHostRefuses) {
    const wire::Word commit = promised();
    go();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // several attempts
    EXPECT_EQ(member.ask("open a"), "open");
    listen();
    answer_the_door();
    tell(wire::Type::Resumed, wire::encode_resumed(0));
    tell(wire::Type::Decision, wire::encode(commit));
    EXPECT_EQ(member.ask("wait a 7"), "commit");
    EXPECT_EQ(member.ask("open a"), "open");
}

TEST_F(PlayedLeader, IsGoneWhereItsHostGoesOnRefusing) {
    EXPECT_EQ(member.ask("pace 5000 400"), "ok");
    promised();
    go();
    EXPECT_EQ(member.ask("wait a 7"), "lost");
    EXPECT_EQ(member.ask("closed a"), "ok");
}

TEST_F(PlayedLeader, IsToldNothingByStrangersAtARelay) {
    EXPECT_EQ(member.ask("pace 500 10000"), "ok");
    let_in();
    const wire::Trailer where = offer();
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 150; ++i) {
        strangers.push_back(call(where));
    }
    const UniqueFd host = call(where);  // the last to come
    say(host, *wire::make_frame(wire::Type::Join, 0, 0, wire::encode_join(where.nonce)));
    Ear host_ear(host);
    EXPECT_TRUE(host_ear.hears(wire::Type::Ready));
    EXPECT_LE(connections(), 1 + 64 + 1);
    EXPECT_TRUE(eventually([&] { return connections() == 2; }));  // the leader and the host
    EXPECT_TRUE(host_ear.hears(wire::Type::Ready));
}

TEST_F(PlayedLeader, HasARelayThatLeavesDescriptorsToTheJob) {
    EXPECT_EQ(member.ask("limit 40 40"), "ok");
    let_in();
    std::vector<UniqueFd> neighbours;
    for (int i = 0; i < 60; ++i) {
        neighbours.push_back(call_relay(relay_name(wire::process_of(trailer.nonce))));
    }
    const UniqueFd late = call_relay(relay_name(wire::process_of(trailer.nonce)));
    EXPECT_TRUE(eventually([&] {
        return !call_relay(relay_name(wire::process_of(trailer.nonce)));  // its door is closed
    }));
    EXPECT_EQ(member.ask("files"), "40");
    EXPECT_GE(std::stoi(member.ask("spare")), 9);
}

// Another host of a leader that is deft's.
class PlayedHost : public ::testing::Test {
protected:
    UniqueFd come(std::uint64_t process, std::uint32_t rank, std::uint64_t of) {
        UniqueFd fd = call(trailer);
        say(fd, name(process));
        wire::Hello hello = hello_for(trailer, rank, kRanks);
        hello.settings = terms("same").settings;
        hello.process = of;
        say(fd, frame(trailer, rank, wire::Type::Hello, wire::encode(hello)));
        return fd;
    }
    void begin() {
        const std::string id = leader.ask("make");
        trailer = trailer_of(from_hex(id));
        EXPECT_EQ(leader.ask("join a " + id + " " + std::to_string(kRanks) + " 0"), "ok");
    }
    static constexpr int kRanks = 3;
    RankChild leader;
    wire::Trailer trailer;
};

// Its first rank may be another process's. That one is not gone with the connection.
TEST_F(PlayedHost, IsKnownByTheNameThatItGives) {
    begin();
    UniqueFd relay = come(11, 1, 22);
    const UniqueFd other = come(33, 2, 33);
    Ear other_ear(other);
    std::optional<Ear> relay_ear(relay);
    EXPECT_TRUE(relay_ear->hears(wire::Type::AllHere));
    EXPECT_TRUE(other_ear.hears(wire::Type::AllHere));
    say(relay, frame(trailer, 1, wire::Type::Ack, {}));
    say(other, frame(trailer, 2, wire::Type::Ack, {}));
    EXPECT_EQ(leader.ask("on a"), "ok");
    EXPECT_TRUE(relay_ear->hears(wire::Type::Verdict));  // with bytes unread it would be reset
    relay_ear.reset();
    relay.reset();
    EXPECT_TRUE(eventually([&] { return leader.ask("tcp") == "1"; }));
    const UniqueFd again = come(11, 1, 22);
    EXPECT_TRUE(Ear(again).hears(wire::Type::Resumed));
    EXPECT_EQ(leader.ask("open a"), "open");
}

// Who comes back is behind nobody any more, and takes no other host's place there.
TEST_F(PlayedHost, IsSentAwayAsOftenAsItComes) {
    EXPECT_EQ(leader.ask("direct 1"), "ok");
    begin();
    const UniqueFd relay = come(11, 1, 11);
    EXPECT_TRUE(Ear(relay).hears(wire::Type::Serve));
    wire::Trailer where;
    where.nonce = trailer.nonce;
    where.endpoints[0] = trailer.endpoints[0];
    where.count = 1;
    say(relay, *wire::make_frame(wire::Type::Offer, 0, 0, wire::encode_offer(where)));
    for (int i = 0; i < 70; ++i) {  // 64 may be behind one
        const UniqueFd host = come(33, 2, 33);
        ASSERT_TRUE(Ear(host).hears(wire::Type::Move)) << i;
    }
}

// A hook that waits for a decision, in a process that is stopped for longer than it would wait. The
// decision comes meanwhile.
TEST(Stopped, WhoSleepsThroughAWaitHasNotWaited) {
    RankChild leader;
    RankChild member;
    const std::string id = leader.ask("make");
    EXPECT_EQ(leader.ask("join a " + id + " 2 0"), "ok");
    EXPECT_EQ(member.ask("join a " + id + " 2 1"), "ok");
    EXPECT_EQ(leader.ask("on a"), "ok");
    EXPECT_EQ(member.ask("on a"), "ok");
    EXPECT_EQ(leader.ask("later a"), "ok");
    EXPECT_EQ(leader.ask("propose a 1"), "ok");
    EXPECT_EQ(member.ask("asked a"), "ok");
    member.say("wait a 1 1500");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    member.stop();
    EXPECT_EQ(leader.ask("answer a 1"), "ok");
    EXPECT_EQ(leader.ask("decision a 1"), "commit");
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    member.signal(SIGCONT);
    EXPECT_EQ(member.hear(), "commit");
}

}  // namespace
}  // namespace deft::agreement::test
