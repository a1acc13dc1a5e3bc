/* SPDX-License-Identifier: Apache-2.0 */
/* Where a call goes when the library could not be opened: to the function that the calling module
   would have reached without deft. */
#ifndef DEFT_SHIM_PRELOAD_SEARCH_H
#define DEFT_SHIM_PRELOAD_SEARCH_H

/* Absent before glibc 2.34 from programs without libdl; such a program has no NCCL. */
extern void* dlsym(void* handle, const char* name) __attribute__((weak));

/* The address of the function called `name` (its number `function` is the same in every call) for
   the code at `caller`, or null. Decided once for each module: its functions all come from the one
   NCCL that its first call reached, whatever is loaded later. Any thread. */
void* search_nccl(unsigned function, const char* name, const void* caller);

#endif
