/* SPDX-License-Identifier: Apache-2.0 */
/* Where a call goes when the library could not be opened: to the function that the calling module
   would have reached without deft. */
#ifndef DEFT_SHIM_PRELOAD_SEARCH_H
#define DEFT_SHIM_PRELOAD_SEARCH_H

#include <stdint.h>

/* Which function a slot stands for; the order is that of hooks.S. */
enum {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) kNccl##name,
#define DEFT_NCCL_QUERY(name, result, parameters, since)
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    kNcclFunctions,
    kBeforeApi = kNcclFunctions - 1,
#define DEFT_API_FUNCTION(name, without) kApi##name,
#include "shim/preload/api_functions.def"
#undef DEFT_API_FUNCTION
    kFunctions
};

/* The address of the function called `name` for the code at `caller`, or null. A module's functions
   all come from the one NCCL that the loader has bound it to, whatever is loaded later. A caller
   that refers to no NCCL (a module's last act was the call, or it has looked the function up)
   follows its communicator, its thread's group, or the modules that do. `frame` is hooks.S's.
   Any thread. */
void* search_nccl(unsigned function, const char* name, const void* caller, const uintptr_t* frame);

#endif
