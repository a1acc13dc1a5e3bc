/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in has beyond libibverbs, for tests. Found with dlsym, or by linking to it. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces the faults of SOFTDEV_VERBS_FAULTS. 0 or EINVAL. */
int softverbs_set_faults(const char* text);
/* How often a fault was injected in this process; -1: there is none of that name. */
long softverbs_injected(const char* fault);
/* How often this process broke a rule. */
unsigned long softverbs_violations(void);
/* Memory that stands for a GPU's: it can be registered, and a CPU that touches it faults. */
void* softverbs_alloc_device(size_t bytes);
int softverbs_free_device(void* at);
/* What the GPU sees there now, and what it writes: as cuMemcpy does it. 0 or EINVAL. */
int softverbs_copy_to_device(void* device, const void* host, size_t bytes);
int softverbs_copy_from_device(void* host, const void* device, size_t bytes);

#ifdef __cplusplus
}
#endif
