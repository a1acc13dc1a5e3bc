// SPDX-License-Identifier: Apache-2.0
// A connection whose socket another process has too, as the children of a job that forks do (data
// loaders): what happens to it afterwards concerns nobody here.
#include "shim/agreement/link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>

namespace deft::agreement::test {
namespace {

class Owner : public LinkOwner {
public:
    bool take(Link& /*link*/, const wire::Header& /*header*/,
              std::span<const std::byte> /*payload*/) override {
        return true;
    }
    void ended(Link& /*link*/, const std::string& how) override { how_ = how; }
    std::string how_;
};

// A link in memory that is spoiled when it goes: whoever is told of anything then does not return.
class Forked : public ::testing::TestWithParam<bool> {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_TRUE(links_.poller.open());
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        peer_ = UniqueFd(ends[1]);
        childs_ = UniqueFd(::dup(ends[0]));
        link_ = new (memory_) Link(links_, UniqueFd(ends[0]), owner_);
    }
    void turn() {
        links_.poller.wait(0);
        links_.poller.tell();
        Link::tell_ends(links_);
    }
    void destroy() {
        link_->~Link();
        std::memset(memory_, 0, sizeof(memory_));
    }

    Links links_;
    Owner owner_;
    UniqueFd peer_;
    UniqueFd childs_;
    Link* link_ = nullptr;
    alignas(Link) std::byte memory_[sizeof(Link)];
};

// The peer closes, or the connection breaks while something is sent.
TEST_P(Forked, NothingIsToldOfASocketThatAChildHas) {
    peer_.reset();
    if (GetParam()) {
        link_->send(wire::make_frame(wire::Type::Ready, 0, 0, {}));
    } else {
        turn();
    }
    Link::tell_ends(links_);
    EXPECT_EQ(owner_.how_, "is gone");
    destroy();
    turn();
    turn();
}

INSTANTIATE_TEST_SUITE_P(When, Forked, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Sending" : "Reading"; });

}  // namespace
}  // namespace deft::agreement::test
