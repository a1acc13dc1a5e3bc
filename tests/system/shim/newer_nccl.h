// SPDX-License-Identifier: Apache-2.0
// Functions of NCCL that are newer than the oldest header the tests build with.
#pragma once

#include <nccl.h>

extern "C" {
#if NCCL_VERSION_CODE < 22900
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* grown, ncclConfig_t* config);
#endif
#if NCCL_VERSION_CODE < 22907
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
#endif
}

namespace deft::test {

inline constexpr int kSuspendMemory = 1;  // NCCL_SUSPEND_MEM

}  // namespace deft::test
