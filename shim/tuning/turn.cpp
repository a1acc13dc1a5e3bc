// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/turn.h"

#include <map>

namespace deft::tuning {

Turn& Turn::of(int device) {
    static auto& mutex = *new Mutex;  // never destroyed: threads may outlive exit()
    static auto& turns = *new std::map<int, Turn>;
    const MutexLock lock(mutex);
    return turns[device];
}

}  // namespace deft::tuning
