// SPDX-License-Identifier: Apache-2.0
// Bits that flip on the way, which TCP's own checksum is assumed not to notice.
#include <gtest/gtest.h>

#include <random>

#include "base/link_stats.h"
#include "tests/component/plugin/relayed_pair.h"

namespace deft::net::testing {
namespace {

ConnectionOptions checked(bool on) {
    ConnectionOptions options;
    options.checksum = on;
    return options;
}

struct Scene : RelayedPair {
    Scene(std::size_t links, std::size_t relays, bool checksum, Nanos link_timeout = 30 * kSecond)
        : RelayedPair(links, relays, link_timeout, checked(checksum)) {}
    std::uint64_t flips() const {
        std::uint64_t sum = 0;
        for (const auto& each : relay) {
            sum += each->flips;
        }
        return sum;
    }
};

struct Outcome {
    std::size_t wrong = 0;  // messages that came otherwise than they were sent
    bool complete = false;
};

// Messages of random sizes, up to `depth` in flight, each compared byte by byte.
Outcome run(Scene& scene, std::size_t messages, std::size_t largest, std::size_t depth = 4) {
    struct Flight {
        Request* send = nullptr;
        Request* receive = nullptr;
        bool sent = false;
        bool received = false;
        std::vector<std::byte> data;
        std::vector<std::byte> buffer;
    };
    Outcome outcome;
    std::vector<Flight> flights(messages);
    std::mt19937 random(3);
    for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t size = random() % 3 == 0 ? random() % 5000 : random() % largest;
        flights[i].data = bytes_of(size, static_cast<unsigned>(i));
        flights[i].buffer.resize(largest);
    }
    Sender& sender = *scene.pair.sender;
    Receiver& receiver = *scene.pair.receiver;
    std::size_t first = 0;
    const Nanos deadline = steady_now() + 2 * kPatience;
    while (first < messages && steady_now() < deadline) {
        if (sender.failure() || receiver.failure()) {
            return outcome;
        }
        scene.step();
        receiver.progress(steady_now());  // as the helper thread does for who is not polled
        for (std::size_t i = first; i < std::min(messages, first + depth); ++i) {
            Flight& flight = flights[i];
            const Nanos now = steady_now();
            if (flight.receive == nullptr) {
                flight.receive =
                    receiver.irecv(flight.buffer.data(), flight.buffer.size(), false, now);
            }
            if (flight.send == nullptr) {
                flight.send = sender.isend(flight.data.data(), flight.data.size(), now);
            }
            if (flight.send == nullptr || flight.receive == nullptr) {
                break;
            }
            std::size_t size = 0;
            if (!flight.sent) {
                flight.sent = sender.test(flight.send, now, nullptr);
            }
            if (!flight.received && receiver.test(flight.receive, now, &size)) {
                flight.received = true;
                const bool same =
                    size == flight.data.size() &&
                    std::equal(flight.data.begin(), flight.data.end(), flight.buffer.begin());
                outcome.wrong += same ? 0 : 1;
            }
        }
        while (first < messages && flights[first].sent && flights[first].received) {
            ++first;
        }
    }
    outcome.complete = first == messages;
    return outcome;
}

// One message through the relay; false if the connection gives up.
bool exchange(Scene& scene, const std::vector<std::byte>& data, std::vector<std::byte>& buffer) {
    Sender& sender = *scene.pair.sender;
    Receiver& receiver = *scene.pair.receiver;
    Request* receive = receiver.irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = nullptr;
    bool sent = false;
    bool received = false;
    const Nanos deadline = steady_now() + kPatience;
    while (receive != nullptr && !(sent && received) && steady_now() < deadline) {
        if (sender.failure() || receiver.failure()) {
            return false;
        }
        scene.step();
        send = send != nullptr ? send : sender.isend(data.data(), data.size(), steady_now());
        if (!sent) {
            sent = send != nullptr && sender.test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = receiver.test(receive, steady_now(), nullptr);
        }
        sender.progress(steady_now());  // as the idle thread does for who is not polled
        receiver.progress(steady_now());
    }
    return sent && received;
}

// Flips a bit once in so many bytes of one direction, beyond the first `spare` of a connection.
Relay::Damage once_in(std::uint64_t bytes, bool to_receiver, std::uint64_t spare = 100) {
    auto passed = std::make_shared<std::uint64_t>(0);
    return [=](bool towards, std::uint64_t begin, std::size_t size) -> long {
        if (towards != to_receiver || begin < spare) {
            return -1;
        }
        const std::uint64_t before = *passed;
        *passed += size;
        return before / bytes != *passed / bytes
                   ? static_cast<long>(std::mt19937(static_cast<unsigned>(before))() % size)
                   : -1;
    };
}

std::uint64_t sum_of(std::atomic<std::uint64_t> LinkCounters::*counter) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < LinkStats::process().size(); ++i) {
        sum += (LinkStats::process()[i].*counter).load();
    }
    return sum;
}

std::uint64_t resent() {
    return sum_of(&LinkCounters::resent_bytes);
}

TEST(Checksum, WithoutItAFlippedBitIsDelivered) {
    Scene scene(1, 1, false);
    ASSERT_TRUE(scene.establish());
    // In the midst of the payload of a large message.
    scene.relay[0]->damage = [done = false](bool towards, std::uint64_t begin,
                                            std::size_t size) mutable -> long {
        if (done || !towards || begin < 100000 || size < 1000) {
            return -1;
        }
        done = true;
        return 500;
    };
    std::vector<std::byte> data = bytes_of(1 << 20, 1);
    std::vector<std::byte> buffer(1 << 20);
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    while (!(sent && received) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
    }
    ASSERT_TRUE(sent && received);
    EXPECT_EQ(scene.flips(), 1U);
    EXPECT_NE(data, buffer);
}

// Of the frames that make a connection: one end would take it for another one, or for further than
// it is.
TEST(Checksum, FlippedBitsInTheFirstFramesAreTriedAgain) {
    for (const bool to_receiver : {true, false}) {
        for (const long at : {to_receiver ? 36 : 20, to_receiver ? 100 : 28}) {
            SCOPED_TRACE(std::to_string(to_receiver) + ": byte " + std::to_string(at));
            Scene scene(2, 2, true);
            scene.relay[0]->damage = [=, done = false](bool towards, std::uint64_t begin,
                                                       std::size_t size) mutable -> long {
                const long byte = at - static_cast<long>(begin);
                if (done || towards != to_receiver || byte < 0 || byte >= static_cast<long>(size)) {
                    return -1;
                }
                done = true;
                return byte;
            };
            ASSERT_TRUE(scene.establish());
            const Outcome outcome = run(scene, 20, 100000);
            EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
            EXPECT_EQ(outcome.wrong, 0U);
            EXPECT_EQ(scene.flips(), 1U);
        }
    }
}

TEST(Checksum, FlippedBitsAreSentAgain) {
    for (const std::size_t links : {1, 2}) {
        SCOPED_TRACE(links);
        Scene scene(links, links, true);
        for (auto& relay : scene.relay) {
            relay->damage = once_in(1'000'000, true);
        }
        ASSERT_TRUE(scene.establish());
        const std::uint64_t before = resent();
        ::testing::internal::CaptureStderr();
        const Outcome outcome = run(scene, 120, 400000);
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
        EXPECT_EQ(outcome.wrong, 0U);
        EXPECT_GT(scene.flips(), 1U);
        const std::size_t warned = said.find("arrived damaged");
        EXPECT_NE(warned, std::string::npos) << said;
        EXPECT_EQ(said.find("arrived damaged", warned + 1), std::string::npos) << said;
        EXPECT_GT(scene.relay[0]->connections, 1U);
        EXPECT_GT(resent(), before);
    }
}

// A path stands still in the middle of a chunk, which another one then begins. What the first
// brings later, damaged, must not stay in the place of what the second has stored already: the
// second's checksum, taken of what it read, is right.
TEST(Checksum, AChunkThatTwoPathsBringIsWhatWasSent) {
    Scene scene(2, 2, true);
    ASSERT_TRUE(scene.establish());
    ASSERT_TRUE(run(scene, 40, 400000).complete);  // both paths are trusted
    constexpr long kUnlimited = 1L << 40;
    long pieces[2] = {1, kUnlimited};  // that each relay passes on to the receiver
    bool flip = false;
    for (std::size_t i = 0; i < 2; ++i) {
        scene.relay[i]->hold = [&pieces, i](bool to_receiver) {
            return to_receiver && pieces[i] == 0;
        };
        scene.relay[i]->damage = [&, i](bool to_receiver, std::uint64_t, std::size_t size) -> long {
            pieces[i] -= to_receiver ? 1 : 0;
            const bool now = to_receiver && i == 0 && flip;
            flip = flip && !now;
            return now ? static_cast<long>(size) / 2 : -1;
        };
    }
    const std::vector<std::byte> data = bytes_of(16 << 20, 1);
    std::vector<std::byte> buffer(data.size());
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    ASSERT_TRUE(receive != nullptr && send != nullptr);
    const std::uint64_t before = resent();
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    Nanos next = 0;
    int stage = 0;
    while (!(sent && received) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
        if (stage == 0 && resent() != before) {
            pieces[1] = 3;  // of 64 KiB each, where the chunk has 256
            stage = 1;
        } else if (stage == 1 && pieces[1] == 0) {
            flip = true;
            pieces[0] = 1;
            stage = 2;
        } else if (stage == 2 && pieces[0] == 0) {
            next = steady_now() + 20 * kMillisecond;
            stage = 3;
        } else if (stage == 3 && steady_now() > next) {
            pieces[0] = pieces[1] = kUnlimited;
            stage = 4;
        }
    }
    EXPECT_EQ(stage, 4);
    EXPECT_EQ(scene.flips(), 1U);
    ASSERT_TRUE(sent && received);
    EXPECT_TRUE(data == buffer);
}

// The path that was overtaken is only slow: what it brings goes nowhere, and it lives on. (Ending
// it would make the sender repeat what the other path is bringing, which would end that one.)
TEST(Checksum, APathThatIsOvertakenLivesOn) {
    Scene scene(2, 2, true);
    ASSERT_TRUE(scene.establish());
    ASSERT_TRUE(run(scene, 40, 400000).complete);  // both paths are trusted
    constexpr long kUnlimited = 1L << 40;
    long pieces[2] = {kUnlimited, kUnlimited};  // that each relay passes on to the receiver
    for (std::size_t i = 0; i < 2; ++i) {
        scene.relay[i]->hold = [&pieces, i](bool to_receiver) {
            return to_receiver && pieces[i] == 0;
        };
        scene.relay[i]->damage = [&pieces, i](bool to_receiver, std::uint64_t,
                                              std::size_t) -> long {
            pieces[i] -= to_receiver ? 1 : 0;
            return -1;
        };
    }
    ASSERT_TRUE(run(scene, 20, 4 << 20).complete);  // now the rates are known
    pieces[0] = 1;
    const std::vector<std::byte> data = bytes_of(4 << 20, 1);
    std::vector<std::byte> buffer(data.size());
    Request* receive =
        scene.pair.receiver->irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = scene.pair.sender->isend(data.data(), data.size(), steady_now());
    ASSERT_TRUE(receive != nullptr && send != nullptr);
    const std::uint64_t before = resent();
    const std::uint64_t changes = sum_of(&LinkCounters::transitions);
    const Nanos deadline = steady_now() + kPatience;
    bool sent = false;
    bool received = false;
    Nanos next = 0;
    int stage = 0;
    while (!(sent && received && pieces[0] == kUnlimited) && steady_now() < deadline) {
        scene.step();
        if (!sent) {
            sent = scene.pair.sender->test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = scene.pair.receiver->test(receive, steady_now(), nullptr);
        }
        scene.pair.sender->progress(steady_now());
        scene.pair.receiver->progress(steady_now());
        if (stage == 0 && resent() != before) {
            pieces[1] = 3;  // of 64 KiB each, where the chunk has 256
            stage = 1;
        } else if (stage == 1 && pieces[1] == 0) {
            pieces[0] = 1;
            stage = 2;
        } else if (stage == 2 && pieces[0] == 0) {
            next = steady_now() + 20 * kMillisecond;
            stage = 3;
        } else if (stage == 3 && steady_now() > next) {
            pieces[1] = kUnlimited;
            stage = 4;
        } else if (stage == 4 && received) {
            pieces[0] = kUnlimited;
        }
    }
    ASSERT_TRUE(sent && received);
    EXPECT_TRUE(data == buffer);
    for (const Nanos end = steady_now() + 50 * kMillisecond; steady_now() < end;) {
        scene.step();
        scene.pair.sender->progress(steady_now());
        scene.pair.receiver->progress(steady_now());
    }
    EXPECT_EQ(sum_of(&LinkCounters::transitions), changes);
    for (const std::size_t path : {0, 1}) {
        EXPECT_EQ(scene.pair.sender->state(path), PathState::Up);
        EXPECT_EQ(scene.pair.receiver->state(path), PathState::Up);
    }
}

// Small messages are done for NCCL before they are acknowledged: their copies are sent again.
TEST(Checksum, FlippedBitsOfSmallMessagesAreSentAgain) {
    Scene scene(1, 1, true);
    scene.relay[0]->damage = once_in(200'000, true);
    ASSERT_TRUE(scene.establish());
    const Outcome outcome = run(scene, 400, 6000, 8);
    EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
    EXPECT_EQ(outcome.wrong, 0U);
    EXPECT_GT(scene.flips(), 0U);
}

// A flipped count of completed messages would make the sender forget what has not arrived.
TEST(Checksum, FlippedAcknowledgementsAreNoticed) {
    for (const std::size_t links : {1, 2}) {
        SCOPED_TRACE(links);
        Scene scene(links, links, true);
        for (auto& relay : scene.relay) {
            relay->damage = once_in(1500, false, 700);
        }
        ASSERT_TRUE(scene.establish());
        const Outcome outcome = run(scene, 150, 300000);
        EXPECT_TRUE(outcome.complete) << scene.pair.sender->failure().text;
        EXPECT_EQ(outcome.wrong, 0U);
        EXPECT_GT(scene.flips(), 0U);
    }
}

// NCCL's GPUs look for the flags of LL and LL128 inside a message while it comes.
TEST(Checksum, BytesAreSeenOnlyOnceTheyAreVerified) {
    for (const bool flip : {false, true}) {
        for (const std::size_t size :
             {std::size_t{100}, std::size_t{8'300}, std::size_t{65'536}, std::size_t{614'400}}) {
            for (const std::size_t links : {1, 2}) {
                SCOPED_TRACE(std::to_string(size) + (flip ? ", damaged" : "") +
                             ", links: " + std::to_string(links));
                Scene scene(links, links, true);
                ASSERT_TRUE(scene.establish());
                const std::vector<std::byte> data(size, std::byte{0x55});
                const std::vector<std::byte> nothing(size);
                std::vector<std::byte> buffer(size);
                std::uint64_t seen = 0;
                bool flipped = !flip;
                for (auto& relay : scene.relay) {
                    relay->damage = [&](bool towards, std::uint64_t, std::size_t bytes) -> long {
                        seen += towards ? bytes : 0;
                        if (!towards || flipped || seen < size) {
                            return -1;
                        }
                        flipped = true;  // in the last piece
                        return static_cast<long>(bytes) - 1;
                    };
                }
                Request* const receive =
                    scene.pair.receiver->irecv(buffer.data(), size, false, steady_now());
                ASSERT_NE(receive, nullptr);
                Request* send = nullptr;
                bool sent = false;
                bool received = false;
                const Nanos deadline = steady_now() + kPatience;
                while (!(sent && received) && steady_now() < deadline) {
                    scene.step();
                    send = send != nullptr
                               ? send
                               : scene.pair.sender->isend(data.data(), size, steady_now());
                    if (!sent) {
                        sent =
                            send != nullptr && scene.pair.sender->test(send, steady_now(), nullptr);
                    }
                    received =
                        received || scene.pair.receiver->test(receive, steady_now(), nullptr);
                    // Chunks of what was cut become visible one by one, each when it is verified.
                    for (std::size_t at = 0; at < size; at += 4096) {
                        ASSERT_TRUE(buffer[at] == std::byte{0} || buffer[at] == data[at]);
                    }
                    ASSERT_TRUE(received || links > 1 || buffer == nothing);
                    ASSERT_TRUE(received || buffer.back() == std::byte{0} || links > 1);
                }
                ASSERT_TRUE(sent && received);
                EXPECT_TRUE(buffer == data);
                EXPECT_EQ(scene.flips(), flip ? 1U : 0U);
            }
        }
    }
}

// Flips a bit of one byte after the other of a direction's second frame of `frame` bytes on each
// connection: `first` bytes come before the first frame, and it takes `every`.
struct EachByte {
    bool to_receiver;
    std::uint64_t first;
    std::uint64_t every;
    std::size_t frame;
    std::size_t byte = 0;  // the next one's

    long operator()(bool towards, std::uint64_t begin, std::size_t size) {
        if (towards != to_receiver || byte == frame) {
            return -1;
        }
        const std::uint64_t at = first + every + byte;
        if (at < begin || at >= begin + size) {
            return -1;
        }
        ++byte;
        return static_cast<long>(at - begin);
    }
};

// Without checksums of the job's bytes. The path ends, and everything is sent again.
TEST(Checksum, HeadersAndAcknowledgementsHaveTheirsAlways) {
    for (const std::size_t size : {std::size_t{8}, std::size_t{3000}, std::size_t{40'000}}) {
        for (const bool to_receiver : {true, false}) {
            SCOPED_TRACE(std::to_string(size) + (to_receiver ? " headers" : " acknowledgements"));
            Scene scene(1, 1, false);
            const EachByte damage =
                to_receiver
                    ? EachByte{true, wire::kHelloBytes, wire::kChunkBytes + size, wire::kChunkBytes}
                    : EachByte{false, wire::kWelcomeBytes, wire::kControlBytes,
                               wire::kControlBytes};
            scene.relay[0]->damage = damage;
            ASSERT_TRUE(scene.establish());
            std::vector<std::byte> buffer(size);
            const Nanos deadline = steady_now() + kPatience;
            for (unsigned i = 0; scene.flips() < damage.frame && steady_now() < deadline; ++i) {
                const std::vector<std::byte> data = bytes_of(size, i);
                std::fill(buffer.begin(), buffer.end(), std::byte{0});
                ASSERT_TRUE(exchange(scene, data, buffer)) << "message " << i;
                ASSERT_TRUE(data == buffer) << "message " << i;
            }
            EXPECT_EQ(scene.flips(), damage.frame);
            EXPECT_GE(scene.relay[0]->connections, damage.frame);
        }
    }
}

TEST(Checksum, PathThatOnlyDamagesIsGivenUpInTime) {
    Scene scene(1, 1, true, 1500 * kMillisecond);
    scene.relay[0]->damage = once_in(1, true);
    ASSERT_TRUE(scene.establish());
    const Outcome outcome = run(scene, 3, 100000);
    EXPECT_FALSE(outcome.complete);
    EXPECT_EQ(outcome.wrong, 0U);
    EXPECT_TRUE(scene.pair.sender->failure() || scene.pair.receiver->failure());
}

}  // namespace
}  // namespace deft::net::testing
