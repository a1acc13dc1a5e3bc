/* SPDX-License-Identifier: Apache-2.0 */
/* What the loader knows of the modules (program or shared library) of a process. The same as
   shim/nccl/calling_module, without the C library. */
#ifndef DEFT_SHIM_PRELOAD_MODULE_H
#define DEFT_SHIM_PRELOAD_MODULE_H

#include <stdint.h>

/* Absent before glibc 2.34 from programs without libdl; such a program has no NCCL. */
extern void* dlsym(void* handle, const char* name) __attribute__((weak));

/* When the loader decides where a module's calls to NCCL go: not at all, because it refers to none;
   as the module is loaded; or each at its first use, none of which has been. */
enum Binding { kRefersToNone, kBoundAtLoad, kBoundLazily };

struct Module {
    const char* name; /* as the loader opens it; "" is the program */
    uintptr_t low;    /* its code and data lie in [low, high) */
    uintptr_t high;
    uintptr_t moved; /* from the file's addresses to the process's */
    const void* dynamic;
    const uint32_t* symbols_hash;
    enum Binding binding;
    int of_users;   /* it refers to functions that NCCL does not call through names itself */
    uint16_t id_at; /* of the build id in the first page; 0: it is not there */
};

/* The module that has this code. False, and `module` as it was, if there is none. */
int module_of(const void* address, struct Module* module);

/* An address in each of at most `size` modules that use NCCL and are bound at load. */
unsigned modules_bound(const void** addresses, unsigned size);

/* True if the object that has `other` was loaded before the one that has `address`. */
int module_is_later(const void* address, const void* other);

/* True if other modules' references are resolved with this one's symbols. `program` is the handle
   of the global scope. */
int module_is_global(const struct Module* module, void* program);

/* Tells a module from another that is loaded to the same place later. `start` is 0 where this C
   library cannot tell whose code an address is without a lock (glibc before 2.35). */
struct Print {
    uintptr_t start;
    uint64_t entry, sections, id;
    uint16_t id_at;
};
void print_take(struct Print* print, const struct Module* module);

/* False if the code at `address` is of another module than the print. Takes no lock. */
int print_fits(const struct Print* print, const void* address);

#endif
