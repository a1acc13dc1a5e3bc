/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shim/preload/search.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shim/preload/module.h"

enum {
    kSites = 128,
    kModules = 32,
    kLibraries = 8,
    kCommunicators = 64,
    kThreads = 64,
    kProbes = 8,
    kSucceeds = 0 /* ncclSuccess */
};

/* How sure it is that a module's calls go to its library. */
enum Certainty {
    kLikely, /* the likeliest of those that are there */
    kCommon, /* the module refers to none; all modules that do go there */
    kBound   /* the loader resolves the module's references to it */
};

/* What is known, filled once and never changed: a thread claims an entry, fills it, and then makes
   it visible. Where all are taken, calls are looked up again each time. */
struct Known { /* a module */
    _Atomic(int) claimed;
    _Atomic(int) there; /* from when it is filled until it is found to be so no more */
    enum Certainty certainty;
    unsigned nccl;
    uintptr_t low, high;
    struct Print print;
};
struct Site { /* a place in the code that calls one function */
    _Atomic(int) claimed;
    unsigned function;
    _Atomic(const void*) key;
    _Atomic(void*) target;
    _Atomic(struct Known*) module;
};
/* The group that a thread has open. Only the thread reads or changes it. */
struct Group {
    _Atomic(uintptr_t) thread;
    unsigned depth;
    unsigned short waiting; /* levels that no library has heard of */
    unsigned short nccl;    /* 1 + its number; 0: nothing has told yet */
};
static struct Known g_modules[kModules];
static struct Site g_sites[kSites];
static struct Group g_groups[kThreads];
static _Atomic(void*) g_libraries[kLibraries]; /* handles; for ever */
static _Atomic(unsigned) g_waiting;            /* groups that wait */
/* Pairs of a key (56 bits) and the number of a library, one on each place. */
static _Atomic(uint64_t) g_communicators[kCommunicators];
static _Atomic(uint64_t) g_last[kThreads]; /* that a thread has called for sure */

/* Which argument is the communicator, from 1. */
static const unsigned char kCommunicatorAt[kNcclFunctions] = {
    [kNcclCommSplit] = 1,     [kNcclCommGrow] = 1,
    [kNcclCommShrink] = 1,    [kNcclCommFinalize] = 1,
    [kNcclCommDestroy] = 1,   [kNcclCommAbort] = 1,
    [kNcclCommRevoke] = 1,    [kNcclAllReduce] = 6,
    [kNcclAllGather] = 5,     [kNcclCommGetAsyncError] = 1,
    [kNcclReduceScatter] = 6, [kNcclBroadcast] = 6,
    [kNcclBcast] = 5,         [kNcclReduce] = 7,
    [kNcclSend] = 5,          [kNcclRecv] = 5,
    [kNcclAlltoAll] = 5,      [kNcclGather] = 6,
    [kNcclScatter] = 6,
};

struct Loader {
    void* (*open)(const char*, int);
    int (*close)(void*);
    int (*where)(const void*, Dl_info*);
};

static int get_loader(struct Loader* loader) {
    loader->open = (void* (*)(const char*, int))dlsym(RTLD_DEFAULT, "dlopen");
    loader->close = (int (*)(void*))dlsym(RTLD_DEFAULT, "dlclose");
    loader->where = (int (*)(const void*, Dl_info*))dlsym(RTLD_DEFAULT, "dladdr");
    return loader->open != NULL && loader->close != NULL && loader->where != NULL;
}

/* --- small tables ---------------------------------------------------------------------------- */

static unsigned place_of(uint64_t key, unsigned size) {
    return (unsigned)((key * 0x9E3779B97F4A7C15u) >> 40) % size;
}

/* 1 + the library's number; 0: nothing is known. */
static unsigned noted(const _Atomic(uint64_t)* table, unsigned size, uintptr_t key) {
    const uint64_t pair = atomic_load_explicit(&table[place_of(key, size)], memory_order_relaxed);
    return (pair >> 8) == ((uint64_t)key << 8) >> 8 ? (unsigned)(pair & 0xFF) : 0;
}

static void put_down(_Atomic(uint64_t)* table, unsigned size, uintptr_t key, unsigned nccl) {
    _Atomic(uint64_t)* const place = &table[place_of(key, size)];
    const uint64_t pair = (uint64_t)key << 8 | (nccl + 1);
    if (atomic_load_explicit(place, memory_order_relaxed) != pair) {
        atomic_store_explicit(place, pair, memory_order_relaxed);
    }
}

static void forget(_Atomic(uint64_t)* table, unsigned size, uintptr_t key) {
    if (noted(table, size, key) != 0) {
        atomic_store_explicit(&table[place_of(key, size)], 0, memory_order_relaxed);
    }
}

static uintptr_t this_thread(void) {
    uintptr_t self;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(self));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(self));
#endif
    return self;
}

/* The thread's open group; with `make`, a new one if it has none. Null if there is no room. */
static struct Group* group_of(uintptr_t thread, int make) {
    const unsigned first = place_of(thread, kThreads);
    for (unsigned probe = 0; probe < kProbes; ++probe) {
        struct Group* const group = &g_groups[(first + probe) % kThreads];
        if (atomic_load_explicit(&group->thread, memory_order_relaxed) == thread) {
            return group;
        }
    }
    for (unsigned probe = 0; make && probe < kProbes; ++probe) {
        struct Group* const group = &g_groups[(first + probe) % kThreads];
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&group->thread, &none, thread)) {
            group->depth = 0;
            group->waiting = 0;
            group->nccl = 0;
            return group;
        }
    }
    return NULL;
}

/* --- a module's library ---------------------------------------------------------------------- */

/* `address`, or null if it is the guest's own function. */
static void* foreign(const struct Loader* loader, void* address) {
    Dl_info of_address, own;
    return address != NULL && loader->where(address, &of_address) != 0 &&
                   loader->where(g_sites, &own) != 0 && of_address.dli_fbase != own.dli_fbase
               ? address
               : NULL;
}

static void* in_library(const struct Loader* loader, void* library, const char* name) {
    return library != NULL ? foreign(loader, dlsym(library, name)) : NULL;
}

static const char kAny[] = "ncclAllReduce"; /* stands for all of a library's functions */

/* Where the loader sends the module's calls, or null. */
static void* bound_to(const struct Loader* loader, const struct Module* module) {
    void* const global = foreign(loader, dlsym(RTLD_NEXT, kAny));
    void* const handle = module->name != NULL && module->name[0] != '\0'
                             ? loader->open(module->name, RTLD_LAZY | RTLD_NOLOAD)
                             : NULL;
    void* const own = in_library(loader, handle, kAny);
    if (handle != NULL) {
        loader->close(handle);
    }
    if (global == NULL || global == own || module->binding == kRefersToNone) {
        return global != NULL ? global : own;
    }
    const int has_it = module->low <= (uintptr_t)own && (uintptr_t)own < module->high;
    if (module->binding == kBoundLazily && !has_it) {
        return global; /* the loader looks now */
    }
    /* One that has come into the global scope after the module is not seen by it. Of a module in
       that scope the dependencies are there too: what stands before them was there in time. */
    if (module->name == NULL || module->name[0] == '\0' ||
        module_is_later((const void*)module->low, global)) {
        return global;
    }
    void* const program = loader->open(NULL, RTLD_LAZY);
    const int in_time = program != NULL && module_is_global(module, program);
    if (program != NULL) {
        loader->close(program);
    }
    return in_time ? global : own;
}

/* 1 + the number of the library that has `address`; 0: there are too many, or it is no library. */
static unsigned number_of(const struct Loader* loader, const void* address) {
    Dl_info info;
    void* const handle = address != NULL && loader->where(address, &info) != 0
                             ? loader->open(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                             : NULL;
    for (unsigned i = 0; handle != NULL && i < kLibraries; ++i) {
        void* known = NULL;
        if (atomic_compare_exchange_strong(&g_libraries[i], &known, handle)) {
            return i + 1; /* keeps it loaded */
        }
        if (known == handle) {
            loader->close(handle);
            return i + 1;
        }
    }
    if (handle != NULL) {
        loader->close(handle);
    }
    return 0;
}

static struct Known* known_at(const void* address) {
    for (unsigned i = 0; i < kModules; ++i) {
        struct Known* const known = &g_modules[i];
        if (atomic_load_explicit(&known->there, memory_order_acquire) != 0 &&
            known->low <= (uintptr_t)address && (uintptr_t)address < known->high) {
            if (print_fits(&known->print, address)) {
                return known;
            }
            atomic_store(&known->there, 0);
        }
    }
    return NULL;
}

static struct Known* keep(const struct Module* module, enum Certainty certainty, unsigned nccl) {
    for (unsigned i = 0; certainty == kBound && i < kModules; ++i) {
        /* That all modules go to one library is not so, once one goes elsewhere. */
        struct Known* const known = &g_modules[i];
        if (atomic_load_explicit(&known->there, memory_order_acquire) != 0 &&
            known->certainty == kCommon && known->nccl != nccl) {
            atomic_store(&known->there, 0);
        }
    }
    for (unsigned i = 0; i < kModules; ++i) {
        struct Known* const known = &g_modules[i];
        if (atomic_exchange(&known->claimed, 1) == 0) {
            known->certainty = certainty;
            known->nccl = nccl;
            known->low = module->low;
            known->high = module->high;
            print_take(&known->print, module);
            atomic_store_explicit(&known->there, 1, memory_order_release);
            /* Two threads may have come to different ones: the first entry stays. */
            struct Known* const first = known_at((const void*)module->low);
            return first != NULL ? first : known;
        }
    }
    return NULL;
}

/* 1 + the number of the library that all modules go to that are bound to one; 0: to several, or
   there are none. */
static unsigned where_others_go(const struct Loader* loader) {
    const void* addresses[kModules];
    const unsigned count = modules_bound(addresses, kModules);
    unsigned common = 0;
    for (unsigned i = 0; i < count; ++i) {
        struct Module module;
        const struct Known* known = known_at(addresses[i]);
        if (known == NULL && module_of(addresses[i], &module)) {
            const unsigned number = number_of(loader, bound_to(loader, &module));
            known = number != 0 ? keep(&module, kBound, number - 1) : NULL;
        }
        if (known == NULL || known->certainty != kBound) {
            continue;
        }
        if (common != 0 && common != known->nccl + 1) {
            return 0;
        }
        common = known->nccl + 1;
    }
    return common;
}

/* As the loader would bind it; for code that found the guest by dlsym, the NCCL that is loaded or
   can be. Null if there is none, or no room; `target` then is where this call goes, or null. */
static struct Known* decide(const struct Loader* loader, const void* caller, const char* name,
                            void** target) {
    struct Module module = {
        "", (uintptr_t)caller, (uintptr_t)caller + 1, 0, NULL, NULL, kRefersToNone, 0, 0};
    enum Certainty certainty = kLikely;
    unsigned number = 0;
    void* found = NULL;
    if (module_of(caller, &module) && module.binding != kRefersToNone) {
        found = bound_to(loader, &module);
        certainty = found != NULL ? kBound : kLikely;
    } else {
        number = where_others_go(loader);
        certainty = number != 0 ? kCommon : kLikely;
    }
    if (number == 0 && found == NULL) {
        found = foreign(loader, dlsym(RTLD_NEXT, kAny));
    }
    if (number == 0 && found == NULL) {
        found = in_library(loader, loader->open("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD), kAny);
    }
    if (number == 0 && found == NULL) {
        found = in_library(loader, loader->open("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL), kAny);
    }
    number = number != 0 ? number : number_of(loader, found);
    if (number == 0) { /* the program has it, or there are too many */
        *target = found != NULL ? foreign(loader, dlsym(RTLD_NEXT, name)) : NULL;
        return NULL;
    }
    *target = in_library(loader, atomic_load(&g_libraries[number - 1]), name);
    return keep(&module, certainty, number - 1);
}

/* --- the call -------------------------------------------------------------------------------- */

static struct Site* site_of(unsigned function, const void* caller, int make) {
    const unsigned first = place_of((uintptr_t)caller + function, kSites);
    for (unsigned probe = 0; probe < kProbes; ++probe) {
        struct Site* const site = &g_sites[(first + probe) % kSites];
        if (atomic_load_explicit(&site->key, memory_order_acquire) == caller &&
            site->function == function) {
            return site;
        }
    }
    for (unsigned probe = 0; make && probe < kProbes; ++probe) {
        struct Site* const site = &g_sites[(first + probe) % kSites];
        if (atomic_exchange(&site->claimed, 1) == 0) {
            site->function = function;
            atomic_store_explicit(&site->key, caller, memory_order_release);
            return site;
        }
    }
    return NULL;
}

static void* function_of(unsigned nccl, const char* name) {
    struct Loader loader;
    return get_loader(&loader) ? in_library(&loader, atomic_load(&g_libraries[nccl]), name) : NULL;
}

static uintptr_t argument(const uintptr_t* frame, unsigned number) {
#if defined(__x86_64__) /* the first six are saved below the frame, the others lie above it */
    return number < 6 ? frame[-1 - (int)number] : frame[2 + number - 6];
#else
    return frame[2 + number];
#endif
}

static int several(void) {
    return atomic_load_explicit(&g_libraries[1], memory_order_relaxed) != NULL;
}

/* Stands for ncclGroupStart while nothing tells which library the group is for. */
static int wait_for_more(void) {
    return kSucceeds;
}

static void begin(struct Group* group, unsigned nccl) {
    int (*const start)(void) = (int (*)(void))function_of(nccl, "ncclGroupStart");
    for (; group->waiting > 0; --group->waiting) {
        if (start != NULL) {
            (void)start();
        }
    }
    group->nccl = (unsigned short)(nccl + 1);
    atomic_fetch_sub(&g_waiting, 1);
}

/* Not what only asks: such a call may be about another library than the group is. */
static int belongs_to_group(unsigned function) {
    return function != kNcclGetVersion && function != kNcclGetUniqueId &&
           function != kNcclGetErrorString && function != kNcclCommGetAsyncError;
}

/* Of a module that is bound to one library: what it calls is that one's from now on. */
static void note_use(uintptr_t thread, uintptr_t communicator, unsigned nccl) {
    put_down(g_last, kThreads, thread, nccl);
    if (communicator != 0) {
        put_down(g_communicators, kCommunicators, communicator, nccl);
    }
}

/* Of any other module: which library the call is for. `undecided`: the thread's last one stands in
   until more is known. */
static unsigned choose(const struct Known* module, uintptr_t thread, uintptr_t communicator,
                       const struct Group* group, int* undecided) {
    unsigned other = 0;
    if (communicator != 0) {
        other = noted(g_communicators, kCommunicators, communicator);
    }
    if (other == 0 && group != NULL) {
        other = group->nccl;
    }
    if (other == 0 && module->certainty == kLikely && several()) {
        *undecided = 1;
        other = noted(g_last, kThreads, thread);
    }
    return other != 0 ? other - 1 : module->nccl;
}

/* ncclGroupStart. False: no library begins it yet. */
static int open_group(struct Group* group, unsigned nccl, int undecided) {
    ++group->depth;
    if (undecided) {
        if (group->waiting++ == 0) {
            atomic_fetch_add(&g_waiting, 1);
        }
        return 0;
    }
    group->nccl = group->nccl != 0 ? group->nccl : (unsigned short)(nccl + 1);
    return 1;
}

/* `target` is the function in the module's own library. */
static void* go_on(const struct Known* module, void* target, unsigned function, const char* name,
                   const uintptr_t* frame) {
    const uintptr_t thread = this_thread();
    const unsigned at = kCommunicatorAt[function];
    const uintptr_t communicator = at != 0 ? argument(frame, at - 1) : 0;
    const int starts = function == kNcclGroupStart;
    const int ends = function == kNcclGroupEnd || function == kNcclGroupSimulateEnd;
    const int waits = atomic_load_explicit(&g_waiting, memory_order_relaxed) != 0;
    const int sure = module->certainty == kBound;
    struct Group* group = starts || ends || waits || !sure ? group_of(thread, starts) : NULL;
    unsigned nccl = module->nccl;
    int undecided = 0;
    if (sure) {
        note_use(thread, communicator, nccl);
    } else {
        nccl = choose(module, thread, communicator, group, &undecided);
    }
    if (function == kNcclCommDestroy || function == kNcclCommAbort) {
        forget(g_communicators, kCommunicators, communicator);
    }
    if (group != NULL && group->waiting > 0 &&
        (ends || (!undecided && belongs_to_group(function)))) {
        begin(group, nccl);
    }
    if (starts && group != NULL && !open_group(group, nccl, undecided)) {
        return (void*)wait_for_more;
    }
    if (ends && group != NULL && --group->depth == 0) {
        atomic_store(&group->thread, 0);
    }
    return nccl == module->nccl ? target : function_of(nccl, name);
}

void* search_nccl(unsigned function, const char* name, const void* caller, const uintptr_t* frame) {
    if (dlsym == NULL) {
        return NULL;
    }
    struct Site* site = site_of(function, caller, 0);
    struct Known* module =
        site != NULL ? atomic_load_explicit(&site->module, memory_order_acquire) : NULL;
    if (module != NULL && atomic_load_explicit(&module->there, memory_order_relaxed) != 0 &&
        print_fits(&module->print, caller)) {
        void* const target = atomic_load_explicit(&site->target, memory_order_relaxed);
        return go_on(module, target, function, name, frame);
    }
    struct Loader loader;
    if (!get_loader(&loader)) {
        return NULL;
    }
    void* target = NULL;
    module = known_at(caller);
    if (module != NULL) {
        target = in_library(&loader, atomic_load(&g_libraries[module->nccl]), name);
    } else {
        module = decide(&loader, caller, name, &target);
    }
    if (module == NULL) {
        return target;
    }
    site = site != NULL ? site : site_of(function, caller, 1);
    if (site != NULL) {
        atomic_store_explicit(&site->target, target, memory_order_relaxed);
        atomic_store_explicit(&site->module, module, memory_order_release);
    }
    return go_on(module, target, function, name, frame);
}
