// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/process_number.h"

#include <unistd.h>

#include "base/mutex.h"
#include "base/random.h"

namespace deft::agreement {

std::uint64_t process_number() {
    static Mutex mutex;
    static pid_t owner = 0;
    static std::uint64_t number = 0;
    const MutexLock lock(mutex);
    while (owner != ::getpid() || number == 0) {
        if (!random_bytes(&number, sizeof(number))) {
            number = static_cast<std::uint64_t>(::getpid());  // as good as can be had
        }
        owner = ::getpid();
    }
    return number;
}

}  // namespace deft::agreement
