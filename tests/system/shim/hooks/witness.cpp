// SPDX-License-Identifier: Apache-2.0
// The nearest caller among the libraries decides: what deft has the driver do is the driver's, what
// it has the C library do is its own.
#include "tests/system/shim/hooks/witness.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deft::test {
namespace {

enum class Library { Deft, Device, Other };

struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
    Library library;
};

constexpr int kMostFrames = 64;
constinit Range g_ranges[16] = {};
constinit std::size_t g_count = 0;
thread_local Witnessed* t_watched = nullptr;
thread_local bool t_looking = false;

Library library_of(std::uintptr_t address) {
    for (std::size_t i = 0; i < g_count; ++i) {
        if (address >= g_ranges[i].begin && address < g_ranges[i].end) {
            return g_ranges[i].library;
        }
    }
    return Library::Other;
}

int add_ranges(dl_phdr_info* info, std::size_t, void*) {
    const char* const slash = std::strrchr(info->dlpi_name, '/');
    const char* const name = slash != nullptr ? slash + 1 : info->dlpi_name;
    const bool deft = std::strstr(name, "libnccl-net-deft") == name;
    const bool device =
        std::strstr(name, "libcuda.so") == name || std::strstr(name, "libnccl.so") == name;
    for (int i = 0; (deft || device) && i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 &&
            g_count < sizeof(g_ranges) / sizeof(g_ranges[0])) {
            const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            g_ranges[g_count++] = {begin, begin + part.p_memsz,
                                   deft ? Library::Deft : Library::Device};
        }
    }
    return 0;
}

struct Search {
    Library found = Library::Other;
    int frames = 0;
};

_Unwind_Reason_Code look(_Unwind_Context* context, void* search) {
    auto& state = *static_cast<Search*>(search);
    state.found = library_of(_Unwind_GetIP(context) - 1);
    return state.found != Library::Other || ++state.frames > kMostFrames ? _URC_END_OF_STACK
                                                                         : _URC_NO_REASON;
}

// `caller` is the return address of the function that asks. Only where that is in the C library
// the stack has to be walked.
bool by_deft(const void* caller) {
    if (t_looking) {
        return false;
    }
    Search search;
    search.found = library_of(reinterpret_cast<std::uintptr_t>(caller) - 1);
    if (search.found == Library::Other) {
        t_looking = true;
        _Unwind_Backtrace(look, &search);
        t_looking = false;
    }
    return search.found == Library::Deft;
}

void count(unsigned long Witnessed::*what, const void* caller) {
    if (t_watched != nullptr && by_deft(caller)) {
        ++(t_watched->*what);
    }
}

template <typename Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

bool find_libraries() {
    g_count = 0;
    ::dl_iterate_phdr(add_ranges, nullptr);
    bool found[2] = {};
    for (std::size_t i = 0; i < g_count; ++i) {
        found[static_cast<std::size_t>(g_ranges[i].library)] = true;
    }
    return found[0] && found[1];
}

Watch::Watch(Witnessed& to) {
    t_watched = &to;
}

Watch::~Watch() {
    t_watched = nullptr;
}

}  // namespace deft::test

using deft::test::Witnessed;

// Found before those of the C library.
#define WITNESS_EXPORT __attribute__((visibility("default")))
#define WITNESS(what) deft::test::count(&Witnessed::what, __builtin_return_address(0))

extern "C" {

void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* pointer, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

WITNESS_EXPORT void* malloc(std::size_t size) {
    WITNESS(allocations);
    return __libc_malloc(size);
}

WITNESS_EXPORT void* calloc(std::size_t count, std::size_t size) {
    WITNESS(allocations);
    return __libc_calloc(count, size);
}

WITNESS_EXPORT void* realloc(void* pointer, std::size_t size) {
    WITNESS(allocations);
    return __libc_realloc(pointer, size);
}

WITNESS_EXPORT void* aligned_alloc(std::size_t alignment, std::size_t size) {
    WITNESS(allocations);
    return __libc_memalign(alignment, size);
}

WITNESS_EXPORT int pthread_mutex_lock(pthread_mutex_t* mutex) {
    WITNESS(locks);
    static auto* const real = deft::test::next<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
    return real(mutex);
}

WITNESS_EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
    WITNESS(locks);
    static auto* const real =
        deft::test::next<decltype(pthread_rwlock_rdlock)>("pthread_rwlock_rdlock");
    return real(lock);
}

WITNESS_EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
    WITNESS(locks);
    static auto* const real =
        deft::test::next<decltype(pthread_rwlock_wrlock)>("pthread_rwlock_wrlock");
    return real(lock);
}

WITNESS_EXPORT int nanosleep(const timespec* time, timespec* left) {
    WITNESS(waits);
    static auto* const real = deft::test::next<decltype(nanosleep)>("nanosleep");
    return real(time, left);
}

WITNESS_EXPORT int usleep(useconds_t time) {
    WITNESS(waits);
    static auto* const real = deft::test::next<decltype(usleep)>("usleep");
    return real(time);
}

WITNESS_EXPORT int sched_yield() {
    WITNESS(waits);
    static auto* const real = deft::test::next<decltype(sched_yield)>("sched_yield");
    return real();
}

// As an atomic waits that takes longer than a few turns.
WITNESS_EXPORT long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long arguments[6];
    for (long& argument : arguments) {
        argument = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_futex) {
        WITNESS(waits);
    }
    static auto* const real = deft::test::next<decltype(syscall)>("syscall");
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                arguments[5]);
}

WITNESS_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                  void* (*run)(void*), void* argument) {
    WITNESS(threads);
    static auto* const real = deft::test::next<decltype(pthread_create)>("pthread_create");
    return real(thread, attributes, run, argument);
}
}
