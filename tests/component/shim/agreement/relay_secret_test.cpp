// SPDX-License-Identifier: Apache-2.0
// Ranks with a shared secret, with another and without one.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/component/shim/agreement/raw_peer.h"
#include "tests/component/shim/agreement/relay_scene.h"

namespace deft::agreement::test {
namespace {

class Secret : public Relay {
protected:
    Secret() {
        char pattern[] = "/tmp/deft-secret-XXXXXX";
        folder = ::mkdtemp(pattern);
        write("right", "correct horse battery staple\n", 0600);
        write("wrong", "correct horse battery stable\n", 0600);
        write("short", "pst\n", 0600);
        write("open", "correct horse battery staple\n", 0644);
    }
    ~Secret() override { std::filesystem::remove_all(folder); }
    void write(const std::string& name, const std::string& text, int mode) {
        std::ofstream(folder + "/" + name) << text;
        EXPECT_EQ(::chmod((folder + "/" + name).c_str(), static_cast<mode_t>(mode)), 0);
    }
    void give(RankChild& who, const std::string& name) {
        EXPECT_EQ(who.ask("set DEFT_SECRET_FILE " + folder + "/" + name), "ok");
    }
    // Ranks 0 to 2: the leader, and two members with these secrets.
    std::string outcome(const std::string& first, const std::string& second) {
        give(leader, "right");
        const std::string id = leader.ask("make");
        const std::string head = "join a " + id + " 3 ";
        EXPECT_EQ(leader.ask(head + "0 2000"), "ok");
        int rank = 0;
        for (const std::string& name : {first, second}) {
            if (!name.empty()) {
                give(members[rank], name);
            }
            EXPECT_EQ(members[rank].ask(head + std::to_string(rank + 1) + " 2000"), "ok");
            ++rank;
        }
        return leader.ask("off a");
    }
    std::string folder;
};

TEST_F(Secret, SharedByAllIsNoHindrance) {
    for (RankChild* const who : {&leader, &members[0], &members[1], &members[2]}) {
        give(*who, "right");
    }
    make("a", {0, 1, 2});
    expect_on("a", {0, 1, 2});
    (void)relay();
    expect_vote("a", 1, {0, 1, 2});
    EXPECT_EQ(members[2].ask("report a word"), "ok");
    EXPECT_EQ(leader.ask("heard a 1"), "3:word ");
}

TEST_F(Secret, AWrongOneKeepsTheRankOut) {
    const std::string reason = outcome("right", "wrong");
    EXPECT_NE(reason.find("rank 2 did not answer"), reason.npos) << reason;
    EXPECT_NE(reason.find("another shared secret"), reason.npos) << reason;
    EXPECT_EQ(members[0].ask("off a"), reason);
    EXPECT_NE(members[1].ask("off a"), "never");
}

TEST_F(Secret, NoneKeepsTheRankOut) {
    const std::string reason = outcome("right", "");
    EXPECT_NE(reason.find("rank 2 did not answer"), reason.npos) << reason;
    EXPECT_NE(reason.find("another shared secret"), reason.npos) << reason;
}

// Who has read the unique id knows the nonce, but not the secret.
TEST_F(Secret, TheUniqueIdAloneIsNotEnough) {
    give(leader, "right");
    give(members[0], "right");
    const std::string id = leader.ask("make");
    const std::string head = "join a " + id + " 2 ";
    EXPECT_EQ(leader.ask(head + "0"), "ok");
    const wire::Trailer trailer = trailer_of(from_hex(id));
    const UniqueFd stranger = call(trailer);
    say(stranger, frame(trailer, 1, wire::Type::Hello, wire::encode(hello_for(trailer, 1, 2))));
    char answer = 0;
    EXPECT_LE(::recv(stranger.get(), &answer, 1, 0), 0);
    EXPECT_EQ(members[0].ask(head + "1"), "ok");
    expect_on("a", {0});
}

TEST_F(Secret, OneThatCannotBeUsedIsNamed) {
    give(leader, "short");
    give(members[0], "open");
    give(members[1], "missing");
    EXPECT_NE(leader.ask("make").find("short': it holds 3 bytes"), std::string::npos);
    EXPECT_NE(members[0].ask("make").find("every user of the host may read"), std::string::npos);
    EXPECT_NE(members[1].ask("make").find("missing': No such file"), std::string::npos);
}

}  // namespace
}  // namespace deft::agreement::test
