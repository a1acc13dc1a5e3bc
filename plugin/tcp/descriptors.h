// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may still open (RLIMIT_NOFILE). A connection needs one for its
// first path; further paths are worth having only while none is short of that.
#pragma once

#include <cstddef>

namespace deft::net {

struct Descriptors {
    std::size_t limit = 0;
    std::size_t used = 0;

    static Descriptors now();
    // Has the kernel's table of them grow now, for as many as connections are likely to need: one
    // that grows later has the call that needs a descriptor wait for every CPU (RCU), 10 to 20 ms.
    static void make_room();

    // Left for what a connection can do without, its further paths. Of a small limit three quarters
    // are kept for first paths, of a very small one all, of a usual one 512. Pure.
    std::size_t spare() const;
    // A peer with a larger limit must not use up ours: true once half of what is kept is gone; with
    // `urgent`, three quarters. Pure.
    bool scarce(bool urgent) const;

private:
    std::size_t kept() const;
};

}  // namespace deft::net
