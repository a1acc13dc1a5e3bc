// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace softdev::net {

// A static object whose destructor does not run at exit, when other threads may still use it. Its
// owner empties it when it is out of use, so that closing a library leaves nothing behind.
template <typename T>
union NeverDestroyed {
    T value;
    NeverDestroyed() : value{} {}
    ~NeverDestroyed() {}
};

}  // namespace softdev::net
