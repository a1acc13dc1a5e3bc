/* SPDX-License-Identifier: Apache-2.0 */
/* The guest, libdeft-preload.so: exports the hooks and opens the library (libnccl-net-deft.so) at
   the process's first call of one. If the library does not open, one line says why and the calls go
   where they would have gone without deft.

   It is made to be preloaded into every process of a fleet, so it asks for nothing: no library, no
   symbol version, one weak symbol (dlsym), no constructor, no memory. It loads under any glibc, and
   under musl. Before glibc 2.34 dlsym is in libdl, which not every program has; one that has NCCL
   does, because NCCL opens its plugins with it.

   Threads: any number may make the first call together. Each then opens the library for itself, and
   finds the same addresses. No lock is held. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/guest.h"
#include "deft/deft.h"
#include "shim/preload/module.h"
#include "shim/preload/search.h"

#define LIBRARY "libnccl-net-deft.so"
#define VISIBLE __attribute__((visibility("default")))

enum {
    kPathSize = 4096, /* PATH_MAX: realpath asks for it */
    kLineSize = 1024,
    kStandardError = 2,
    kSystemError = 2 /* ncclSystemError */
};

/* No pointers: they would have to be relocated in every process. */
static const char guest_names[kFunctions][32] = {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) "nccl" #name,
#define DEFT_NCCL_QUERY(name, result, parameters, since)
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
#define DEFT_API_FUNCTION(name, without) "deft_" #name,
#include "shim/preload/api_functions.def"
#undef DEFT_API_FUNCTION
};

extern _Atomic(void*) guest_slots[kFunctions] __attribute__((visibility("hidden"))); /* hooks.S */

extern VISIBLE const deft_guest_t deft_preload_guest;

/* Unknown until a thread has tried; then for ever what it found. */
enum State { kUnknown, kOpened, kWithout };
static _Atomic(int) g_state = kUnknown;
static _Atomic(int) g_said = 0;
static _Atomic(int) g_required = 0;

/* --- answers where there is no library ------------------------------------------------------- */

static const char* answer_version(void) {
    return DEFT_VERSION;
}
static int answer_one(void) {
    return 1;
}
static int answer_zero(void) {
    return 0;
}
static void* answer_null(void) {
    return NULL;
}
static int answer_stats(deft_stats_t* stats) {
    if (stats == NULL || stats->size <= sizeof(stats->size)) {
        return -1;
    }
    for (size_t i = sizeof(stats->size); i < stats->size && i < sizeof(*stats); ++i) {
        ((volatile char*)stats)[i] = 0;
    }
    return 0;
}
static int answer_system_error(void) {
    return kSystemError;
}
static const char* answer_error_string(void) {
    return "unhandled system error (deft found no NCCL library to forward to)";
}

static void* answer(unsigned function) {
    switch (function) {
#define DEFT_API_FUNCTION(name, without) \
    case kApi##name:                     \
        return (void*)without;
#include "shim/preload/api_functions.def"
#undef DEFT_API_FUNCTION
        case kNcclGetErrorString:
        case kNcclGetLastError:
            return (void*)answer_error_string;
        default:
            return (void*)answer_system_error;
    }
}

/* --- what the guest needs of the C library --------------------------------------------------- */

static void* in_process(const char* name) {
    return dlsym != NULL ? dlsym(RTLD_DEFAULT, name) : NULL;
}

/* "" where it is not set. */
static const char* setting(const char* name) {
    char* (*const look)(const char*) = (char* (*)(const char*))in_process("getenv");
    const char* const value = look != NULL ? look(name) : NULL;
    return value != NULL ? value : "";
}

static int is_one_of(const char* text, const char* const* words) {
    for (; *words != NULL; ++words) {
        size_t i = 0;
        while (text[i] != '\0' && (text[i] | 32) == ((*words)[i] | 32)) {
            ++i;
        }
        if (text[i] == '\0' && (*words)[i] == '\0') {
            return 1;
        }
    }
    return 0;
}

static size_t append(char* line, size_t used, size_t size, const char* text) {
    while (*text != '\0' && used + 1 < size) {
        line[used++] = *text++;
    }
    line[used] = '\0';
    return used;
}

/* One line, at most once; not to a reader that has gone away, which would end the process. */
static void say(const char* why) {
    static const char* const none[] = {"none", NULL};
    int (*const ask)(struct pollfd*, nfds_t, int) =
        (int (*)(struct pollfd*, nfds_t, int))in_process("poll");
    ssize_t (*const put)(int, const void*, size_t) =
        (ssize_t(*)(int, const void*, size_t))in_process("write");
    if (put == NULL || atomic_exchange(&g_said, 1) != 0 || is_one_of(setting("DEFT_LOG"), none)) {
        return;
    }
    struct pollfd reader = {kStandardError, POLLOUT, 0};
    if (ask == NULL || ask(&reader, 1, 0) < 0 ||
        (reader.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        return;
    }
    char line[kLineSize];
    size_t used = append(line, 0, sizeof(line) - 1, "[deft] WARN cannot open " LIBRARY ": ");
    used = append(line, used, sizeof(line) - 128, why);
    used = append(line, used, sizeof(line) - 1,
                  atomic_load(&g_required) ? "; DEFT_REQUIRE is set, so no communicator is made"
                                           : "; the job's NCCL calls go on without deft");
    line[used++] = '\n';
    (void)put(kStandardError, line, used);
}

/* --- opening --------------------------------------------------------------------------------- */

/* The library in the folder of `own`; null and `path` empty if that is no path. */
static void* open_next_to(void* (*open)(const char*, int), const char* own, char* path) {
    size_t used = append(path, 0, kPathSize, own);
    while (used > 0 && path[used - 1] != '/') {
        --used;
    }
    if (used == 0 || used + sizeof(LIBRARY) > kPathSize) {
        path[0] = '\0';
        return NULL;
    }
    append(path, used, kPathSize, LIBRARY);
    /* LOCAL: the guest's own names stand for the library's. */
    return open(path, RTLD_LAZY | RTLD_LOCAL);
}

/* The guest's file as the kernel has it: the loader keeps a relative name, which leads elsewhere
   once the program has changed its folder. Empty if the kernel does not tell. */
static void find_file(char* path) {
    int (*const open)(const char*, int, ...) = (int (*)(const char*, int, ...))in_process("open");
    ssize_t (*const get)(int, void*, size_t) = (ssize_t(*)(int, void*, size_t))in_process("read");
    int (*const close)(int) = (int (*)(int))in_process("close");
    const uintptr_t own = (uintptr_t)guest_names;
    char part[kLineSize];
    uintptr_t bounds[2] = {0, 0}; /* of the mapping that the line is about */
    unsigned field = 0;           /* 0, 1: in a bound; 2: behind them; 3: in the path */
    size_t used = 0;
    path[0] = '\0';
    if (open == NULL || get == NULL || close == NULL) {
        return;
    }
    const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t count = 0;
    int done = file < 0;
    while (!done && (count = get(file, part, sizeof(part))) > 0) {
        for (ssize_t i = 0; i < count && !done; ++i) {
            const char c = part[i];
            const int is_own = bounds[0] <= own && own < bounds[1];
            if (c == '\n') {
                done = field == 3;
                field = 0;
                bounds[0] = 0;
                bounds[1] = 0;
            } else if (field < 2 && (c == '-' || c == ' ')) {
                ++field;
            } else if (field < 2) {
                bounds[field] = bounds[field] * 16 + (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
            } else if (is_own && (field == 3 || c == '/') && used + 1 < kPathSize) {
                field = 3;
                path[used++] = c;
            }
        }
    }
    path[used] = '\0';
    if (file >= 0) {
        (void)close(file);
    }
}

/* Next to the guest as it was named, next to the file itself where that name was a link, and by the
   loader's search path. `why` keeps the reason of the first that failed. */
static void* open_library(char* why) {
    void* (*const open)(const char*, int) = (void* (*)(const char*, int))in_process("dlopen");
    int (*const where)(const void*, Dl_info*) =
        (int (*)(const void*, Dl_info*))in_process("dladdr");
    char* (*const resolve)(const char*, char*) =
        (char* (*)(const char*, char*))in_process("realpath");
    char* (*const error)(void) = (char* (*)(void))in_process("dlerror");
    char path[kPathSize];
    char real[kPathSize];
    char file[kPathSize];
    Dl_info own;
    void* library = NULL;
    append(why, 0, kLineSize, "this program has no dlopen");
    if (open == NULL || where == NULL || error == NULL) {
        return NULL;
    }
    why[0] = '\0';
    if (where((const void*)guest_names, &own) != 0 && own.dli_fname != NULL) {
        const char* name = own.dli_fname;
        if (name[0] != '/') {
            find_file(file);
            name = file[0] != '\0' ? file : name;
        }
        library = open_next_to(open, name, path);
        if (library == NULL && path[0] != '\0') {
            const char* const text = error();
            append(why, 0, kLineSize, text != NULL ? text : path);
        }
        if (library == NULL && resolve != NULL && resolve(name, real) != NULL) {
            library = open_next_to(open, real, path);
        }
    }
    if (library == NULL) {
        library = open(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
        if (library == NULL && why[0] == '\0') {
            const char* const text = error();
            append(why, 0, kLineSize, text != NULL ? text : "unknown reason");
        }
    }
    return library;
}

/* Sends every slot to the library. False if it is not one that this guest knows. */
static int take_over(void* library) {
    void (*const opened_by)(const deft_guest_t*) =
        (void (*)(const deft_guest_t*))dlsym(library, "deft_opened_by");
    void* hooks[kFunctions];
    if (opened_by == NULL) {
        return 0;
    }
    for (unsigned i = 0; i < kFunctions; ++i) {
        hooks[i] = dlsym(library, guest_names[i]);
        if (hooks[i] == NULL) {
            return 0;
        }
    }
    opened_by(&deft_preload_guest);
    for (unsigned i = 0; i < kFunctions; ++i) {
        atomic_store_explicit(&guest_slots[i], hooks[i], memory_order_release);
    }
    return 1;
}

static int start(void) {
    static const char* const no[] = {"", "0", "no", "off", "false", NULL};
    char why[kLineSize];
    if (setting("DEFT_DISABLE")[0] != '\0') {
        return kWithout; /* wanted, so nothing is said */
    }
    void* const library = open_library(why);
    if (library != NULL) {
        if (take_over(library)) {
            return kOpened;
        }
        append(why, 0, kLineSize, "it is of another version than " DEFT_VERSION);
    }
    atomic_store(&g_required, !is_one_of(setting("DEFT_REQUIRE"), no));
    say(why);
    return kWithout;
}

/* --- the first call, and every call without the library -------------------------------------- */

/* From hooks.S. The address to go on to, for a call through `slot` made by the code at `caller`,
   whose arguments lie around `frame`. */
void* guest_first_call(_Atomic(void*)* slot, const void* caller, const uintptr_t* frame);
void* guest_first_call(_Atomic(void*)* slot, const void* caller, const uintptr_t* frame) {
    const unsigned function = (unsigned)(slot - guest_slots);
    int state = atomic_load(&g_state);
    if (state == kUnknown) {
        const int found = start();
        /* Whoever comes second takes the first one's word. */
        state = atomic_compare_exchange_strong(&g_state, &state, found) ? found : state;
    }
    if (state == kOpened) {
        return atomic_load_explicit(slot, memory_order_acquire);
    }
    if (function >= kNcclFunctions) {
        return answer(function);
    }
    const int makes = function >= kNcclCommInitRank && function <= kNcclCommInitAll;
    if (makes && atomic_load(&g_required)) {
        return answer(function);
    }
    void* const target = search_nccl(function, guest_names[function], caller, frame);
    return target != NULL ? target : answer(function);
}

static void* next(const char* name) {
    void* const found = dlsym(RTLD_NEXT, name);
    __asm__ volatile("" ::: "memory"); /* no tail call: dlsym judges by its caller */
    return found;
}

VISIBLE const deft_guest_t deft_preload_guest = {sizeof(deft_guest_t), next};
