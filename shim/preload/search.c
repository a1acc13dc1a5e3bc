/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shim/preload/search.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { kCalls = 256, kModules = 16, kProbes = 8 };

/* What is known, filled once and never changed. A thread claims an entry, fills it, and then sets
   `key`, which makes it visible. Where all are taken, calls are looked up again each time. */
struct Call { /* a place in the code that calls one function */
    _Atomic(int) claimed;
    _Atomic(const void*) key;
    unsigned function;
    void* target;
};
struct Module {
    _Atomic(int) claimed;
    _Atomic(const void*) key; /* its load address */
    void* nccl;               /* handle of the object that has its functions */
};
static struct Call g_calls[kCalls];
static struct Module g_modules[kModules];

struct Loader {
    void* (*open)(const char*, int);
    int (*where)(const void*, Dl_info*);
};

static struct Loader loader(void) {
    const struct Loader found = {
        (void* (*)(const char*, int))dlsym(RTLD_DEFAULT, "dlopen"),
        (int (*)(const void*, Dl_info*))dlsym(RTLD_DEFAULT, "dladdr"),
    };
    return found;
}

/* Where a call from `caller` is kept, by number of the probe. */
static struct Call* place(unsigned function, const void* caller, unsigned probe) {
    const uintptr_t mixed = ((uintptr_t)caller + function) * (uintptr_t)0x9E3779B97F4A7C15u;
    return &g_calls[((mixed >> 40) + probe) % kCalls];
}

static void* recall(unsigned function, const void* caller) {
    for (unsigned probe = 0; probe < kProbes; ++probe) {
        const struct Call* const call = place(function, caller, probe);
        if (atomic_load_explicit(&call->key, memory_order_acquire) == caller &&
            call->function == function) {
            return call->target;
        }
    }
    return NULL;
}

static void remember(unsigned function, const void* caller, void* target) {
    for (unsigned probe = 0; probe < kProbes; ++probe) {
        struct Call* const call = place(function, caller, probe);
        if (atomic_exchange(&call->claimed, 1) == 0) {
            call->function = function;
            call->target = target;
            atomic_store_explicit(&call->key, caller, memory_order_release);
            return;
        }
    }
}

static void* decided_for(const void* module) {
    for (unsigned i = 0; i < kModules; ++i) {
        if (atomic_load_explicit(&g_modules[i].key, memory_order_acquire) == module) {
            return g_modules[i].nccl;
        }
    }
    return NULL;
}

static void decide(const void* module, void* nccl) {
    for (unsigned i = 0; i < kModules; ++i) {
        if (atomic_exchange(&g_modules[i].claimed, 1) == 0) {
            g_modules[i].nccl = nccl;
            atomic_store_explicit(&g_modules[i].key, module, memory_order_release);
            return;
        }
    }
}

static const void* base_of(const struct Loader* loader, const void* address) {
    Dl_info info;
    return loader->where(address, &info) != 0 ? info.dli_fbase : NULL;
}

/* `address`, or null if it is the guest's own function. */
static void* foreign(const struct Loader* loader, void* address) {
    return address != NULL && base_of(loader, address) != base_of(loader, g_calls) ? address : NULL;
}

static void* in_library(const struct Loader* loader, void* library, const char* name) {
    return library != NULL ? foreign(loader, dlsym(library, name)) : NULL;
}

/* As the loader would bind it: the global scope behind the guest, what the module itself depends
   on; then, for code that found the guest by dlsym, the NCCL that is loaded or can be. */
static void* bind(const struct Loader* loader, const Dl_info* module, const char* name) {
    void* target = foreign(loader, dlsym(RTLD_NEXT, name));
    if (target == NULL && module->dli_fname != NULL) {
        target = in_library(loader, loader->open(module->dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
    }
    if (target == NULL) {
        target = in_library(loader, loader->open("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD), name);
    }
    if (target == NULL) {
        target = in_library(loader, loader->open("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL), name);
    }
    return target;
}

void* search_nccl(unsigned function, const char* name, const void* caller) {
    void* target = recall(function, caller);
    if (target != NULL || dlsym == NULL) {
        return target;
    }
    const struct Loader found = loader();
    Dl_info module = {0};
    Dl_info of_target;
    if (found.open == NULL || found.where == NULL) {
        return NULL;
    }
    (void)found.where(caller, &module);
    void* const nccl = module.dli_fbase != NULL ? decided_for(module.dli_fbase) : NULL;
    target = nccl != NULL ? in_library(&found, nccl, name) : bind(&found, &module, name);
    if (target == NULL) {
        return NULL;
    }
    if (nccl == NULL && module.dli_fbase != NULL && found.where(target, &of_target) != 0) {
        void* const handle = found.open(of_target.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (handle != NULL) {
            decide(module.dli_fbase, handle);
        }
    }
    remember(function, caller, target);
    return target;
}
