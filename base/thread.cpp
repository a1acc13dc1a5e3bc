// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>

#include <csignal>

namespace deft {

int start_thread(const char* name, std::size_t stack_bytes, void* (*main)(void*),
                 void* argument) noexcept {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    if (stack_bytes != 0) {
        ::pthread_attr_setstacksize(&attributes, stack_bytes);
    }
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int error = ::pthread_create(&thread, &attributes, main, argument);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ::pthread_attr_destroy(&attributes);
    if (error == 0) {
        ::pthread_setname_np(thread, name);
        ::pthread_detach(thread);
    }
    return error;
}

}  // namespace deft
