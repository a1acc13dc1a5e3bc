/* SPDX-License-Identifier: Apache-2.0 */
/* What libnccl-net-deft.so offers to the few programs that look at it directly. Jobs need nothing
 * of this. */
#ifndef DEFT_DEFT_H
#define DEFT_DEFT_H

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": the version of the library. A string that is never freed. Any thread, at any time. */
const char* deft_version(void);

#ifdef __cplusplus
}
#endif

#endif
