// SPDX-License-Identifier: Apache-2.0
#include "tests/component/plugin/conformance/conformance.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "plugin/core/request.h"

namespace deft::net::testing {
namespace {

constexpr Nanos kPatience = 60 * kSecond;

// One end of a path: what it was told, and where its bytes go.
struct End final : PathEvents {
    std::unique_ptr<Path> path;
    std::vector<std::byte> buffer;
    std::function<Place(const Chunk&)> judge;  // none: Store
    std::vector<Chunk> chunks;
    std::vector<Control> controls;
    bool closed = false;
    std::vector<std::vector<std::byte>> contents;          // of the chunks, as they arrived
    std::map<std::uint64_t, std::vector<std::byte>> lent;  // where messages are written

    Place place(const Chunk& chunk, std::byte*& destination) override {
        const Place place = judge ? judge(chunk) : Place::Store;
        if (place == Place::Store) {
            if (buffer.size() < chunk.length) {
                buffer.resize(chunk.length);
            }
            destination = buffer.data();
        }
        return place;
    }
    void arrived(const Chunk& chunk) override {
        chunks.push_back(chunk);
        contents.emplace_back(
            buffer.begin(),
            buffer.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(buffer.size()),
                                                      static_cast<std::ptrdiff_t>(chunk.length)));
    }
    Place landed(const Chunk& chunk) override {
        const Place place = judge ? judge(chunk) : Place::Store;
        if (place == Place::Store) {
            chunks.push_back(chunk);
            contents.push_back(lent.at(chunk.message));
        }
        return place;
    }
    void control(const Control& control) override { controls.push_back(control); }
    void peer_closed() override { closed = true; }
};

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
    std::vector<std::byte> data(size);
    std::mt19937 random(seed);
    for (std::byte& each : data) {
        each = static_cast<std::byte>(random());
    }
    return data;
}

// A message of one chunk.
Chunk chunk_of(std::uint64_t message, const std::vector<std::byte>& data) {
    Chunk chunk;
    chunk.message = message;
    chunk.total = data.size();
    chunk.chunk_size = chunk.length = static_cast<std::uint32_t>(data.size());
    chunk.data = data.data();
    return chunk;
}

class Link : public ::testing::TestWithParam<const LinkKind*> {
protected:
    void SetUp() override {
        std::string reason;
        scene_ = GetParam()->make(reason);
        if (scene_ == nullptr) {
            GTEST_SKIP() << GetParam()->name << ": " << reason;
        }
    }

    // Until `done`, polling both ends and looking at the door; false after too long.
    bool run(const std::function<bool()>& done) {
        const Nanos deadline = steady_now() + kPatience;
        while (!done()) {
            if (steady_now() > deadline) {
                return false;
            }
            for (End* end : {&sender_, &receiver_}) {
                if (end->path) {
                    if (end->path->capabilities().granted) {
                        end->path->look_after(steady_now());
                    }
                    (void)end->path->poll(*end, true);
                }
            }
        }
        return true;
    }

    bool connect(std::uint32_t incarnation = 1) {
        if (dialer_ == nullptr) {
            dialer_ = scene_->dialer();
        }
        dialer_->start(incarnation, steady_now());
        Connected connected;
        Admitted admitted;
        const Nanos deadline = steady_now() + kPatience;
        Dialer::Result result = Dialer::Result::Pending;
        while ((connected.path == nullptr || admitted.path == nullptr) && steady_now() < deadline) {
            if (connected.path == nullptr) {
                result = dialer_->poll(steady_now(), connected);
            }
            if (admitted.path == nullptr) {
                (void)scene_->next(steady_now(), admitted);
            }
            if (result != Dialer::Result::Pending && result != Dialer::Result::Connected) {
                ADD_FAILURE() << dialer_->failure();
                return false;
            }
        }
        EXPECT_EQ(admitted.incarnation, incarnation);
        EXPECT_EQ(admitted.index, 0);
        EXPECT_NE(admitted.counters, nullptr);
        sender_.path = std::move(connected.path);
        receiver_.path = std::move(admitted.path);
        return sender_.path != nullptr && receiver_.path != nullptr;
    }

    // What a granted path needs of a chunk that is too large to come along.
    Chunk lend(Chunk chunk) {
        const Capabilities can = sender_.path->capabilities();
        if (!can.granted || chunk.length <= can.inline_bytes) {
            return chunk;
        }
        std::vector<std::byte>& memory = receiver_.lent[chunk.message];
        lent_before_.push_back(std::move(memory));
        memory.assign(chunk.total, std::byte{0});
        const auto registered = [&](std::shared_ptr<Domain> domain, const void* data) {
            std::string problem;
            const std::shared_ptr<Domain> domains[] = {std::move(domain)};
            regions_.push_back(
                std::make_unique<Region>(Memory{data, chunk.total}, domains, problem));
            EXPECT_EQ(problem, "");
            return regions_.back().get();
        };
        const std::shared_ptr<Domain> far = scene_->domain();
        grants_.push_back({chunk.message, reinterpret_cast<std::uintptr_t>(memory.data()),
                           chunk.total, registered(far, memory.data())->in(far.get())->remote_key});
        chunk.grant = &grants_.back();
        chunk.region = registered(dialer_->domain(), chunk.data);
        return chunk;
    }

    bool post(const Chunk& stream_chunk) {
        const Chunk chunk = lend(stream_chunk);
        Post result = Post::Again;
        EXPECT_TRUE(run([&] { return (result = sender_.path->post(chunk)) != Post::Again; }));
        grant(chunk);
        return result == Post::Ok;
    }

    // The sender had it from here, the receiving path needs to know before the chunk comes. Whether
    // it has room to tell the sender does not matter.
    void grant(const Chunk& chunk) {
        if (chunk.grant != nullptr) {
            EXPECT_NE(receiver_.path->grant(*chunk.grant), Post::Failed);
        }
    }

    std::unique_ptr<LinkScene> scene_;
    std::deque<Grant> grants_;
    std::unique_ptr<Dialer> dialer_;
    End sender_;
    End receiver_;
    // A queue pair ends some time after its path: till then, or until the memory is registered no
    // more, a card may write to what was lent and read what was posted.
    std::vector<std::vector<std::byte>> lent_before_;
    std::deque<std::vector<std::byte>> kept_;  // posted, where the path may end before it is sent
    std::vector<std::unique_ptr<Region>> regions_;
};

// What only a kind of link does whose receiver reads bytes to where they belong.
class Stream : public Link {};

TEST_P(Link, ConnectsAndDescribesItself) {
    ASSERT_TRUE(connect());
    for (End* end : {&sender_, &receiver_}) {
        EXPECT_STRNE(end->path->describe(), "");
        EXPECT_EQ(end->path->loss(), Path::Loss::None);
        EXPECT_FALSE(end->path->writing());
    }
    EXPECT_STRNE(dialer_->describe(), "");
}

TEST_P(Link, ChunksArriveWholeAndInOrder) {
    ASSERT_TRUE(connect());
    const std::size_t sizes[] = {
        0,     1,       8,       47,   48, 207,         208, 209,
        256,   257,     8,       2048, 1,  kEagerBytes, 8,   kEagerBytes + 1,
        65536, 1 << 20, 3 << 20, 7,    0};
    std::vector<std::vector<std::byte>> sent;
    for (const std::size_t size : sizes) {
        sent.push_back(random_bytes(size, static_cast<unsigned>(size)));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
        ASSERT_TRUE(post(chunk_of(i, sent[i])));
        // Its bytes are the caller's until the path has written them.
        ASSERT_TRUE(run([&] { return receiver_.chunks.size() == i + 1; })) << i;
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(receiver_.chunks[i].message, i);
        EXPECT_EQ(receiver_.chunks[i].total, sent[i].size());
        EXPECT_EQ(receiver_.contents[i], sent[i]);
    }
}

TEST_P(Link, ManyAtOnceStayInOrder) {
    ASSERT_TRUE(connect());
    std::mt19937 random(11);
    std::vector<std::vector<std::byte>> sent;
    for (unsigned i = 0; i < 300; ++i) {
        sent.push_back(random_bytes(i % 3 == 0 ? random() % 200000 : random() % 3000, i));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
        ASSERT_TRUE(post(chunk_of(i, sent[i])));
    }
    ASSERT_TRUE(run([&] { return receiver_.chunks.size() == sent.size(); }));
    for (std::size_t i = 0; i < sent.size(); ++i) {
        ASSERT_EQ(receiver_.contents[i], sent[i]) << i;
    }
}

TEST_P(Link, NoRoomIsAgainAndNeverAnErrorOrAWait) {
    ASSERT_TRUE(connect());
    const std::vector<std::byte> data = random_bytes(1 << 20, 1);
    std::size_t posted = 0;
    while (posted * data.size() < scene_->too_much()) {
        const Chunk chunk = lend(chunk_of(posted, data));
        const Post result = sender_.path->post(chunk);
        ASSERT_NE(result, Post::Failed);
        if (result == Post::Again) {
            break;
        }
        grant(chunk);
        ++posted;
    }
    ASSERT_LT(posted * data.size(), scene_->too_much()) << "it took everything";
    EXPECT_EQ(sender_.path->post(lend(chunk_of(posted, data))), Post::Again);
    EXPECT_NE(sender_.path->writing(), sender_.path->capabilities().granted);
    ASSERT_TRUE(run([&] { return receiver_.chunks.size() == posted; }));
    EXPECT_FALSE(sender_.path->writing());
    for (const auto& content : receiver_.contents) {
        ASSERT_EQ(content, data);
    }
}

TEST_P(Link, ControlFramesComeBack) {
    ASSERT_TRUE(connect());
    Control last;
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        Control control;
        control.received = i;
        control.completed = i;
        control.posted = 2 * i;
        const Post result = receiver_.path->send(control);
        ASSERT_NE(result, Post::Failed);
        last = result == Post::Ok ? control : last;
    }
    Control bye = last;
    bye.kind = Control::Kind::Bye;
    ASSERT_TRUE(run([&] { return receiver_.path->send(bye) == Post::Ok; }));
    ASSERT_TRUE(run([&] {
        return !sender_.controls.empty() && sender_.controls.back().kind == Control::Kind::Bye;
    }));
    std::uint64_t before = 0;
    for (const Control& control : sender_.controls) {
        EXPECT_GE(control.received, before);
        before = control.received;
    }
    EXPECT_EQ(sender_.controls.back().posted, last.posted);
}

TEST_P(Link, BothWaysAtOnce) {
    ASSERT_TRUE(connect());
    const std::vector<std::byte> data = random_bytes(100000, 5);
    for (std::uint64_t i = 0; i < 100; ++i) {
        Control control;
        control.received = control.completed = control.posted = i;
        (void)receiver_.path->send(control);
        ASSERT_TRUE(post(chunk_of(i, data)));
    }
    ASSERT_TRUE(run([&] { return receiver_.chunks.size() == 100; }));
    for (const auto& content : receiver_.contents) {
        ASSERT_EQ(content, data);
    }
    EXPECT_GT(sender_.controls.size(), 0U);
}

TEST_P(Stream, WithoutReadingNothingIsRead) {
    ASSERT_TRUE(connect());
    Control control;
    control.posted = 3;
    ASSERT_EQ(receiver_.path->send(control), Post::Ok);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_NE(sender_.path->poll(sender_, false), Path::Poll::Failed);
    }
    EXPECT_TRUE(sender_.controls.empty());
    ASSERT_TRUE(run([&] { return sender_.controls.size() == 1; }));
}

TEST_P(Stream, DiscardedChunksLeaveTheNextIntact) {
    ASSERT_TRUE(connect());
    // Odd messages are not wanted; message 4 stops being wanted once some of it has come.
    int asked = 0;
    receiver_.judge = [&](const Chunk& chunk) {
        const bool turned = chunk.message == 4 && ++asked > 1;
        return chunk.message % 2 == 1 || turned ? PathEvents::Place::Discard
                                                : PathEvents::Place::Store;
    };
    std::vector<std::vector<std::byte>> sent;
    for (unsigned i = 0; i < 12; ++i) {
        sent.push_back(random_bytes(i % 4 < 2 ? 500 + i : 2000000 + i, i));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
        ASSERT_TRUE(post(chunk_of(i, sent[i])));
    }
    ASSERT_TRUE(run([&] { return receiver_.chunks.size() == sent.size(); }));
    for (std::size_t i = 0; i < sent.size(); i += 2) {
        if (i != 4) {
            ASSERT_EQ(receiver_.contents[i], sent[i]) << i;
        }
    }
}

TEST_P(Link, RefusalEndsThePathAsAProtocolError) {
    ASSERT_TRUE(connect());
    receiver_.judge = [](const Chunk&) { return PathEvents::Place::Refuse; };
    const std::vector<std::byte> data = random_bytes(100, 1);
    ASSERT_TRUE(post(chunk_of(0, data)));
    ASSERT_TRUE(run([&] { return receiver_.path->loss() != Path::Loss::None; }));
    EXPECT_EQ(receiver_.path->loss(), Path::Loss::Protocol);
    EXPECT_STRNE(receiver_.path->failure(), "");
    EXPECT_EQ(receiver_.path->poll(receiver_, true), Path::Poll::Failed);
    EXPECT_EQ(receiver_.path->send(Control{}), Post::Failed);
    EXPECT_TRUE(receiver_.chunks.empty());
}

TEST_P(Stream, AbandonedBytesAreNotReadAndTheNextChunkIsWhole) {
    ASSERT_TRUE(connect());
    std::vector<std::byte> first = random_bytes(16 << 20, 1);
    const std::vector<std::byte> second = random_bytes(50000, 2);
    receiver_.judge = [](const Chunk& chunk) {
        return chunk.message == 0 ? PathEvents::Place::Discard : PathEvents::Place::Store;
    };
    ASSERT_EQ(sender_.path->post(chunk_of(0, first)), Post::Ok);
    ASSERT_TRUE(sender_.path->writing());
    sender_.path->abandon(0);
    first.clear();
    first.shrink_to_fit();  // the sanitizers would see a look at it
    ASSERT_TRUE(post(chunk_of(1, second)));
    ASSERT_TRUE(run([&] { return receiver_.chunks.size() == 2; }));
    EXPECT_EQ(receiver_.contents[1], second);
}

TEST_P(Link, ByeComesAfterWhatWasPosted) {
    ASSERT_TRUE(connect());
    const std::vector<std::byte> data = random_bytes(700000, 3);
    for (std::uint64_t i = 0; i < 5; ++i) {
        ASSERT_TRUE(post(chunk_of(i, data)));
    }
    ASSERT_TRUE(run([&] {
        const Post result = sender_.path->send_bye();
        EXPECT_NE(result, Post::Failed);
        return result == Post::Ok;
    }));
    ASSERT_TRUE(run([&] { return receiver_.closed; }));
    EXPECT_EQ(receiver_.chunks.size(), 5U);
}

TEST_P(Link, CloseHandsOverWhatWasPosted) {
    ASSERT_TRUE(connect());
    const std::vector<std::byte> data = random_bytes(5000, 4);
    for (std::uint64_t i = 0; i < 8; ++i) {
        ASSERT_TRUE(post(chunk_of(i, data)));
    }
    (void)sender_.path->send_bye();
    sender_.path->close(kSecond);
    sender_.path.reset();
    ASSERT_TRUE(run([&] { return receiver_.path->loss() != Path::Loss::None; }));
    EXPECT_EQ(receiver_.path->loss(), Path::Loss::Ended);
    EXPECT_EQ(receiver_.chunks.size(), 8U);
    EXPECT_TRUE(receiver_.closed);
}

TEST_P(Link, AbruptEndIsSeenOnBothSides) {
    for (const bool sender_ends : {true, false}) {
        ASSERT_TRUE(connect(sender_ends ? 1 : 2));
        const std::vector<std::byte>& data = kept_.emplace_back(random_bytes(16 << 20, 5));
        ASSERT_EQ(sender_.path->post(lend(chunk_of(0, data))), Post::Ok);
        End& gone = sender_ends ? sender_ : receiver_;
        End& left = sender_ends ? receiver_ : sender_;
        gone.path->close(0);
        gone.path.reset();
        ASSERT_TRUE(run([&] { return left.path->loss() != Path::Loss::None; }));
        EXPECT_TRUE(left.path->loss() == Path::Loss::Ended ||
                    left.path->loss() == Path::Loss::Reset);
        EXPECT_STRNE(left.path->failure(), "");
        EXPECT_EQ(left.path->poll(left, true), Path::Poll::Failed);
        EXPECT_EQ(sender_ends ? left.path->send(Control{}) : left.path->post(chunk_of(1, data)),
                  Post::Failed);
        // Never a chunk that is not whole; a card may have had time for all of it.
        EXPECT_TRUE(receiver_.chunks.empty() || left.path->capabilities().granted);
        for (const auto& content : receiver_.contents) {
            EXPECT_EQ(content, data);
        }
        left.path->close(kSecond);  // at once: there is nothing to hand over
        left.path.reset();
    }
}

TEST_P(Link, IsMadeAgainAfterALoss) {
    const std::vector<std::byte> data = random_bytes(30000, 6);
    for (std::uint32_t incarnation = 1; incarnation <= 5; ++incarnation) {
        ASSERT_TRUE(connect(incarnation));
        receiver_.chunks.clear();
        ASSERT_TRUE(post(chunk_of(0, data)));
        ASSERT_TRUE(run([&] { return receiver_.chunks.size() == 1; }));
        sender_.path->close(0);
        sender_.path.reset();
        receiver_.path.reset();
    }
}

TEST_P(Link, AttemptsCanBeGivenUpAtAnyMoment) {
    dialer_ = scene_->dialer();
    for (std::uint32_t attempt = 1; attempt <= 20; ++attempt) {
        dialer_->start(attempt, steady_now());
        Connected connected;
        Admitted admitted;
        for (std::uint32_t i = 0; i < attempt; ++i) {
            (void)dialer_->poll(steady_now(), connected);
            if (i > attempt / 2) {
                (void)scene_->next(steady_now(), admitted);
            }
        }
        dialer_->cancel();
    }
    // What was left at the door by them is older than the next.
    dialer_->start(100, steady_now());
    Connected connected;
    Admitted admitted;
    ASSERT_TRUE(run([&] {
        if (connected.path == nullptr) {
            const Dialer::Result result = dialer_->poll(steady_now(), connected);
            EXPECT_TRUE(result == Dialer::Result::Pending || result == Dialer::Result::Connected)
                << dialer_->failure();
        }
        Admitted next;
        if (scene_->next(steady_now(), next) && next.incarnation == 100) {
            admitted = std::move(next);
        }
        return connected.path != nullptr && admitted.path != nullptr;
    }));
}

TEST_P(Link, NobodyListensIsRefusedNotPending) {
    dialer_ = scene_->dialer();
    scene_->stop_listening();
    dialer_->start(1, steady_now());
    Connected connected;
    Dialer::Result result = Dialer::Result::Pending;
    ASSERT_TRUE(run([&] {
        result = dialer_->poll(steady_now(), connected);
        return result != Dialer::Result::Pending;
    }));
    EXPECT_EQ(result, Dialer::Result::Refused);
    EXPECT_STRNE(dialer_->failure(), "");
}

const auto kName = [](const auto& info) { return std::string(info.param->name); };

INSTANTIATE_TEST_SUITE_P(Kinds, Link,
                         ::testing::Values(&kTcpKind, &kTcp6Kind, &kTcpLookKind, &kVerbsKind,
                                           &kUcxKind),
                         kName);
INSTANTIATE_TEST_SUITE_P(Kinds, Stream, ::testing::Values(&kTcpKind, &kTcp6Kind, &kTcpLookKind),
                         kName);

}  // namespace
}  // namespace deft::net::testing
