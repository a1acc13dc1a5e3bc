// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/unique_fd.h"

namespace deft::net {
namespace {

// Sees whether `used` counts 100 descriptors, at a limit of so many.
void expect_counted(rlim_t limit) {
    rlimit limits{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limits), 0);
    if (limits.rlim_max < limit) {
        GTEST_SKIP() << "not so many descriptors here";
    }
    limits.rlim_cur = limit;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limits), 0);
    const std::size_t before = Descriptors::now().used;
    std::vector<UniqueFd> files;
    while (files.size() < 100) {
        files.emplace_back(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
    }
    EXPECT_GE(Descriptors::now().used, before + 99);
    EXPECT_LE(Descriptors::now().used, before + 101);
}

TEST(Descriptors, CountsThoseInUse) {
    expect_counted(1024);
    expect_counted(8192);
}

// As under a supervisor that closes what it does not need: the lowest that is free is then 0.
TEST(Descriptors, AClosedStandardInputHidesNone) {
    const UniqueFd kept(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    ::close(STDIN_FILENO);
    expect_counted(8192);
    EXPECT_LT(::fcntl(STDIN_FILENO, F_GETFD), 0);
    ::dup2(kept.get(), STDIN_FILENO);
}

}  // namespace
}  // namespace deft::net
