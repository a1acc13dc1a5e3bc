// SPDX-License-Identifier: Apache-2.0
// The rules of docs/alive.md, on a virtual clock: what is patience, what is death, and who hears.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deft/abi/net.h"
#include "plugin/core/quiet_warning.h"
#include "tests/component/plugin/core/one_message.h"

namespace deft::net::testing {
namespace {

using ::testing::HasSubstr;

// ---- Messages move -----------------------------------------------------------------------------

TEST(Alive, ALinkThatOnlyAnswersSmallPacketsIsAnErrorInTime) {
    for (const std::size_t links : {1, 2}) {
        OneMessage scene(std::vector<FakeLink>(links, swallowing()), kMinute);
        scene.post();
        scene.send();
        ::testing::internal::CaptureStderr();
        scene.drive(5 * kMinute, [&] { return scene.sender_failed(); });
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_GE(scene.since(), kMinute);
        EXPECT_LE(scene.since(), kMinute + kSecond);
        EXPECT_GE(scene.wire.links[0].connections, 4) << "it was not for lack of connections";
        EXPECT_EQ(count(said, "MTU"), links) << said;
        EXPECT_EQ(count(said, "no message got to"), 3U) << said;  // and the error
        scene.drive(kSecond, [&] { return scene.receiver_failed(); });
        EXPECT_TRUE(scene.receiver_failed()) << "nobody told it";
    }
}

// What is lost over and over in the midst of a large chunk moves nothing either.
TEST(Alive, NewConnectionsDoNotRenewTheClock) {
    OneMessage scene({link(0.001)}, 20 * kSecond);
    scene.wire.links[0].times_out = 100 * kMillisecond;
    scene.post();
    scene.send();
    for (int i = 0; i < 100 && !scene.sender_failed(); ++i) {
        scene.wire.links[0].black_hole = false;
        scene.drive(700 * kMillisecond);
        scene.wire.links[0].black_hole = true;
        scene.drive(300 * kMillisecond);
    }
    EXPECT_TRUE(scene.sender_failed());
    EXPECT_GT(scene.wire.links[0].connections, 10);
    EXPECT_LE(scene.since(), 25 * kSecond);
}

TEST(Alive, ASlowLinkThatMovesIsNoError) {
    FakeLink slow = link(0.0005);  // 62.5 KB/s
    slow.nominal_mbps = 1;
    OneMessage scene({slow, slow}, 2 * kSecond);
    for (int i = 0; i < 2; ++i) {
        scene.sent = scene.received = false;
        scene.post();
        scene.send();
        scene.drive(kMinute, [&] { return scene.sent && scene.received; });
        EXPECT_TRUE(scene.sent) << scene.wire.sender->failure().text;
        EXPECT_GT(scene.since(), 4 * kSecond);
    }
}

TEST(Alive, APeerThatHasPostedNothingIsBusy) {
    OneMessage scene({link(1), link(1)}, kMinute);
    scene.send();
    scene.drive(20 * kMinute);
    EXPECT_FALSE(scene.sender_failed()) << scene.wire.sender->failure().text;
    scene.post();
    scene.drive(kSecond);
    EXPECT_TRUE(scene.sent);
    EXPECT_TRUE(scene.received);
}

TEST(Alive, AReceiverToWhichNothingIsSentWaits) {
    OneMessage scene({link(1)}, kMinute);
    scene.post();
    scene.drive(20 * kMinute);
    EXPECT_FALSE(scene.receiver_failed()) << scene.wire.receiver->failure().text;
}

// It was stopped itself, or its job did not call.
TEST(Alive, TimeInWhichNobodyDroveItDoesNotCount) {
    OneMessage scene({link(1)}, kMinute);
    scene.wire.links[0].black_hole = true;
    scene.post();
    scene.send();
    scene.drive(kSecond);
    scene.wire.now += 10 * kMinute;
    scene.drive(20 * kSecond);
    EXPECT_FALSE(scene.sender_failed()) << scene.wire.sender->failure().text;
    scene.wire.links[0].black_hole = false;
    scene.drive(5 * kSecond);
    EXPECT_TRUE(scene.sent);
}

// ---- Flaps -------------------------------------------------------------------------------------

// Down 1 s, up 0.1 s, down 7 s, with attempts that are broken off at any moment in between.
TEST(Flaps, APeerWhoseLinksFlapIsAlive) {
    for (const std::size_t links : {1, 2}) {
        for (int blink = 5; blink <= 400; blink += 15) {
            for (const bool sender_sees : {true, false}) {
                SCOPED_TRACE(std::to_string(links) + " links, up for " + std::to_string(blink));
                OneMessage scene(std::vector<FakeLink>(links, link(0.1)), 30 * kSecond);
                for (FakeLink& each : scene.wire.links) {
                    each.sees[0] = sender_sees;
                    each.sees[1] = links > 1;
                    each.hangs = true;
                    each.times_out = 5 * kSecond;
                }
                scene.post();
                scene.send();
                const auto carrier = [&](bool on) {
                    for (FakeLink& each : scene.wire.links) {
                        each.carrier = on;
                    }
                };
                scene.drive(10 * kMillisecond);
                carrier(false);
                scene.drive(kSecond);
                carrier(true);
                scene.drive(blink * kMillisecond, [&] { return scene.sent; });
                carrier(false);
                scene.drive(7 * kSecond);
                carrier(true);
                scene.drive(6 * kSecond, [&] { return scene.sent && scene.received; });
                ASSERT_TRUE(scene.sent) << scene.wire.sender->failure().text;
                ASSERT_TRUE(scene.received) << scene.wire.receiver->failure().text;
            }
        }
    }
}

// All its paths were reset, and it has not dialled anew yet.
TEST(Flaps, ResetsAreNoProofOfDeath) {
    OneMessage scene({link(1), link(1)}, 10 * kMinute);
    scene.post();
    scene.wire.sender_says = Word::Lives;
    scene.wire.sender.reset();
    scene.drive(9 * kMinute);
    EXPECT_FALSE(scene.receiver_failed()) << scene.wire.receiver->failure().text;
}

// A firewall on one link, which refuses what a middlebox has reset, says nothing about the peer
// when the other link has an outage much later.
TEST(Flaps, WhatOneLinkSaysWhileAnotherWorksIsForgotten) {
    PeerEvidence evidence;
    evidence.connected();
    evidence.lost(true, false, kMinute);
    evidence.heard(Word::Refused, kMinute);
    evidence.lost(false, true, 2 * kMinute);
    EXPECT_FALSE(evidence.gone(3 * kMinute));
    evidence.heard(Word::Refused, 3 * kMinute);
    EXPECT_FALSE(evidence.gone(3 * kMinute + kSecond));
    evidence.heard(Word::Lives, 3 * kMinute + 2 * kSecond);
    evidence.heard(Word::Refused, 3 * kMinute + 40 * kSecond);
    EXPECT_FALSE(evidence.gone(3 * kMinute + 50 * kSecond));
    EXPECT_TRUE(evidence.gone(3 * kMinute + 70 * kSecond));
    evidence.connected();
    EXPECT_FALSE(evidence.gone(5 * kMinute));
}

TEST(Flaps, WhileNoLinkOfThisHostHasACarrierTheClockStands) {
    OneMessage scene({link(1), link(1)}, 5 * kSecond);
    scene.post();
    scene.send();
    for (FakeLink& each : scene.wire.links) {
        each.carrier = false;
    }
    scene.drive(17 * kMinute);
    EXPECT_FALSE(scene.sender_failed()) << scene.wire.sender->failure().text;
    EXPECT_FALSE(scene.receiver_failed()) << scene.wire.receiver->failure().text;
    for (FakeLink& each : scene.wire.links) {
        each.carrier = true;
    }
    scene.drive(5 * kSecond);
    EXPECT_TRUE(scene.sent && scene.received);
}

TEST(Flaps, ButNotForEver) {
    OneMessage scene({link(1)}, 5 * kSecond);
    scene.post();
    scene.send();
    scene.wire.links[0].carrier = false;
    scene.drive(20 * kMinute, [&] { return scene.sender_failed(); });
    EXPECT_TRUE(scene.sender_failed());
    EXPECT_GE(scene.since(), Patience::kKernel);
}

// What a link cannot ask is no word, and no time that a host has said so.
TEST(Flaps, OneRefusalAfterLongWithoutAnAnswerIsNoProof) {
    PeerEvidence evidence;
    evidence.connected();
    evidence.lost(false, true, kMinute);
    for (Nanos at = 0; at < 5 * kMinute; at += kSecond) {
        evidence.heard(Word::Unheard, kMinute + at);
    }
    evidence.heard(Word::Refused, 6 * kMinute);
    EXPECT_FALSE(evidence.gone(6 * kMinute));
    evidence.heard(Word::Unheard, 6 * kMinute + 29 * kSecond);
    EXPECT_FALSE(evidence.gone(6 * kMinute + 29 * kSecond));
    evidence.heard(Word::Refused, 6 * kMinute + 30 * kSecond);
    evidence.heard(Word::Unheard, 6 * kMinute + 30 * kSecond);
    EXPECT_TRUE(evidence.gone(6 * kMinute + 30 * kSecond));
    evidence.heard(Word::Lives, 6 * kMinute + 31 * kSecond);
    EXPECT_FALSE(evidence.gone(8 * kMinute));
}

// Two links, one of which cannot ask: what the other hears counts at once.
TEST(Flaps, ALinkThatCannotAskHidesNothing) {
    PeerEvidence evidence;
    evidence.connected();
    evidence.lost(true, true, kMinute);
    evidence.heard(Word::Refused, kMinute);
    evidence.heard(Word::Unheard, kMinute);
    EXPECT_TRUE(evidence.gone(kMinute));
    EXPECT_THAT(evidence.reason(), HasSubstr("nobody listens"));
}

// ---- Patience ----------------------------------------------------------------------------------

TEST(Patient, AnOutageThatTheKernelSurvivesIsSurvivedAndSaidOf) {
    OneMessage scene({link(1), link(1)});
    for (FakeLink& each : scene.wire.links) {
        each.times_out = 5 * kSecond;
        each.black_hole = true;
    }
    scene.post();
    scene.send();
    ::testing::internal::CaptureStderr();
    scene.drive(17 * kMinute + 24 * kSecond);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(scene.sender_failed()) << scene.wire.sender->failure().text;
    EXPECT_FALSE(scene.receiver_failed()) << scene.wire.receiver->failure().text;
    EXPECT_GE(count(said, "no message got to receiver"), 33U) << said;
    EXPECT_LE(count(said, "no message got to receiver"), 35U) << said;
    EXPECT_GE(count(said, "no path to sender"), 33U) << said;
    EXPECT_LE(count(said, "WARN"), 70U);
    EXPECT_THAT(said, HasSubstr(".1 is down: fake failure"));
    for (FakeLink& each : scene.wire.links) {
        each.black_hole = false;
    }
    scene.drive(5 * kSecond);
    EXPECT_TRUE(scene.sent && scene.received);
}

// A warning that holds for ten minutes keeps nobody else's from being given.
TEST(Patient, WhatIsSaidOfOneMutesNoOther) {
    const Nanos now = 1000 * kMinute;
    std::size_t said = 0;
    for (int i = 0; i < 200; ++i) {
        const std::string about = "long " + std::to_string(i);
        said += may_warn(about.c_str(), now, 10 * kMinute) ? 1 : 0;
    }
    EXPECT_EQ(said, 200U);
    for (const Nanos later : {Nanos{0}, 29 * kSecond}) {
        for (int i = 0; i < 50; ++i) {
            const std::string about = "short " + std::to_string(i);
            said += may_warn(about.c_str(), now + later, 29 * kSecond) ? 1 : 0;
            EXPECT_FALSE(may_warn(about.c_str(), now + later + kSecond, 29 * kSecond));
        }
    }
    EXPECT_EQ(said, 300U);
    EXPECT_FALSE(may_warn("long 7", now + 10 * kMinute - kSecond, 10 * kMinute));
    EXPECT_TRUE(may_warn("long 7", now + 10 * kMinute, 10 * kMinute));
}

// One cannot hear the other: a firewall in one direction. Whoever gives up first tells.
TEST(Patient, TheOtherEndHearsAsSoonAsAPathIsBack) {
    OneMessage scene({link(1), link(1)}, 20 * kSecond);
    scene.post();
    scene.drive(10 * kMillisecond);
    for (FakeLink& each : scene.wire.links) {
        each.sees[0] = each.sees[1] = false;
        each.times_out = 5 * kSecond;
        each.black_hole = true;
    }
    scene.send();
    scene.drive(21 * kSecond, [&] { return scene.sender_failed(); });
    ASSERT_TRUE(scene.sender_failed());
    ASSERT_FALSE(scene.receiver_failed()) << "its clock began later";
    for (FakeLink& each : scene.wire.links) {
        each.black_hole = false;
    }
    scene.drive(200 * kMillisecond, [&] { return scene.receiver_failed(); });
    EXPECT_TRUE(scene.receiver_failed());
    EXPECT_THAT(std::string(scene.wire.receiver->failure().text), HasSubstr("has closed"));
}

// ---- Death -------------------------------------------------------------------------------------

// A killed process: its host ends every connection and refuses new ones.
TEST(Death, IsKnownAtOnceBySendersAndReceivers) {
    for (const std::size_t links : {1, 2}) {
        for (const bool one_cut : {false, true}) {
            for (const bool receiver_dies : {false, true}) {
                for (const Nanos age : {10 * kMillisecond, 10 * kSecond}) {
                    SCOPED_TRACE(std::to_string(links) + (one_cut ? " one cut" : "") +
                                 (receiver_dies ? " receiver" : " sender"));
                    OneMessage scene(std::vector<FakeLink>(links, link(1)));
                    scene.drive(age);
                    if (one_cut && links > 1) {
                        scene.wire.links[0].carrier = false;
                        scene.drive(kSecond);
                    }
                    if (receiver_dies) {
                        scene.wire.receiver_listens = false;
                        for (FakeLink& each : scene.wire.links) {
                            each.mute = true;
                        }
                        scene.wire.receiver.reset();
                        scene.send();
                        scene.drive(kMinute, [&] { return scene.sender_failed(); });
                    } else {
                        scene.wire.sender_says = Word::Refused;
                        scene.wire.sender.reset();
                        scene.post();
                        scene.drive(kMinute, [&] { return scene.receiver_failed(); });
                    }
                    EXPECT_LE(scene.since(), 200 * kMillisecond);
                }
            }
        }
    }
}

// An address that another host has on the network of one link: what that one answers is no word of
// the peer's, which all other links lead to.
TEST(Death, AStrangersWordIsNone) {
    for (const Dialer::Result says :
         {Dialer::Result::Refused, Dialer::Result::Closed, Dialer::Result::Fatal}) {
        for (const std::size_t wrong : {0, 1}) {
            SCOPED_TRACE(std::to_string(static_cast<int>(says)) + " by " + std::to_string(wrong));
            std::vector<FakeLink> links{link(1), link(1)};
            FakeLink& right = links[1 - wrong];
            links[wrong].stranger = says;
            right.accepts_at = 1400 * kMillisecond;  // long after the stranger has spoken
            right.sees[0] = false;
            OneMessage scene(links);
            scene.post();
            scene.send();
            // The receiver has lost the carrier for a moment and ended the path; it takes a while
            // to accept another.
            FakeLink& path = scene.wire.links[1 - wrong];
            path.accepts_at = scene.wire.now + kSecond;
            path.carrier = false;
            scene.drive(2 * kMillisecond);
            path.carrier = true;
            scene.drive(10 * kSecond, [&] { return scene.sent && scene.received; });
            EXPECT_EQ(path.connections, 2);
            EXPECT_TRUE(scene.sent) << scene.wire.sender->failure().text;
        }
    }
}

// After an outage in which it died nothing ends: its host only says, for a while, that nobody
// listens.
TEST(Death, OfAHostThatWasStartedAnew) {
    OneMessage scene({link(1), link(1)});
    for (FakeLink& each : scene.wire.links) {
        each.black_hole = true;
        each.times_out = 5 * kSecond;
    }
    scene.post();
    scene.drive(10 * kSecond);
    scene.wire.sender_says = Word::Refused;
    for (FakeLink& each : scene.wire.links) {
        each.black_hole = false;
    }
    scene.wire.sender.reset();
    scene.began = scene.wire.now;
    scene.drive(5 * kMinute, [&] { return scene.receiver_failed(); });
    EXPECT_GE(scene.since(), PeerEvidence::kRepeated);
    EXPECT_LE(scene.since(), PeerEvidence::kRepeated + 2 * kSecond);
}

TEST(Death, OfAPeerThatCannotBeAsked) {
    OneMessage scene({link(1), link(1)});
    scene.post();
    scene.wire.sender_says = Word::Unheard;
    scene.wire.sender.reset();
    scene.drive(5 * kMinute, [&] { return scene.receiver_failed(); });
    EXPECT_GE(scene.since(), PeerEvidence::kRepeated);
    EXPECT_LE(scene.since(), PeerEvidence::kRepeated + 2 * kSecond);
}

// ---- Set-up ------------------------------------------------------------------------------------

Nanos set_up(FakeWire& wire, Nanos limit) {
    const Nanos began = wire.now;
    while (wire.sender->establish(wire.now) == Sender::Ready::NotYet && wire.now - began < limit) {
        wire.now += kMillisecond;
    }
    return wire.now - began;
}

TEST(SetUp, AnAddressThatIsTurnedDownIsAnErrorWithinFiveSeconds) {
    FakeWire wire({link(1), link(1)});
    wire.receiver_listens = false;
    const Nanos took = set_up(wire, kMinute);
    EXPECT_TRUE(wire.sender->failure());
    EXPECT_GE(took, 4 * kSecond);
    EXPECT_LE(took, 5 * kSecond);
    EXPECT_THAT(std::string(wire.sender->failure().text), HasSubstr("cannot be reached"));
}

// The peer dies once one path is up, before the other one is.
TEST(SetUp, APeerThatDiesOverItIsKnownAtOnce) {
    FakeWire wire({link(1), link(1)});
    wire.links[1].black_hole = true;
    while (wire.sender->state(0) != PathState::Up) {
        ASSERT_EQ(wire.sender->establish(wire.now), Sender::Ready::NotYet);
        wire.receiver->establish(wire.now);
        wire.now += kMillisecond;
    }
    wire.receiver_listens = false;
    wire.links[0].mute = true;
    wire.receiver.reset();
    const Nanos took = set_up(wire, kMinute);
    EXPECT_TRUE(wire.sender->failure());
    EXPECT_LE(took, 200 * kMillisecond);
}

TEST(SetUp, ASilentOneIsWaitedFor) {
    FakeWire wire({link(1), link(1)}, Patience::kKernel);
    wire.links[0].black_hole = wire.links[1].black_hole = true;
    set_up(wire, 10 * kMinute);
    EXPECT_FALSE(wire.sender->failure()) << wire.sender->failure().text;
    wire.links[0].black_hole = false;
    EXPECT_TRUE(wire.establish() || wire.establish());  // two seconds each
}

}  // namespace
}  // namespace deft::net::testing
