/* SPDX-License-Identifier: Apache-2.0 */
/* How the guest (shim/preload: libdeft-preload.so) and the library that it opens know each other.
 * C and C++. */
#ifndef DEFT_BASE_GUEST_H
#define DEFT_BASE_GUEST_H

#include <stddef.h>

/* The guest's own, exported as deft_preload_guest. It is never freed. */
typedef struct {
    size_t size; /* sizeof(deft_guest_t) of the guest's build; fields are only ever added */
    /* dlsym(RTLD_NEXT, name) from the guest's place in the global scope. */
    void* (*next)(const char* name);
} deft_guest_t;

#ifdef __cplusplus
extern "C" {
#endif
/* The library's: called by the guest that has opened it, before any hook. Any thread, repeatedly.
 */
void deft_opened_by(const deft_guest_t* guest);
#ifdef __cplusplus
}

namespace deft {

/* The guest in this process, or null: the one that opened this library, else the one that is
 * preloaded. Asks the loader until one is found. */
const deft_guest_t* guest() noexcept;

/* True if `base` is the load address of the guest. */
bool is_guest(const void* base) noexcept;

}  // namespace deft
#endif

#endif
