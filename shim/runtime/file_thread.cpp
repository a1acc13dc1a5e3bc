// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/file_thread.h"

#include <time.h>

#include <cstring>

#include "base/log.h"
#include "base/thread.h"
#include "shim/control/kill_switch.h"

namespace deft {
namespace {

constexpr timespec kLookEvery{3, 0};

void* thread_main(void*) noexcept {
    for (;;) {
        director::KillSwitch::process().look();
        ::nanosleep(&kLookEvery, nullptr);
    }
}

}  // namespace

bool start_file_thread() noexcept {
    static const int error = start_thread("deft-files", 256 * 1024, thread_main, nullptr);
    if (error != 0) {
        DEFT_WARN_ONCE("no thread for files (%s): the kill switch is not seen",
                       std::strerror(error));
    }
    return error == 0;
}

}  // namespace deft
