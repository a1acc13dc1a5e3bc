// SPDX-License-Identifier: Apache-2.0
// A plugin's inner side that forwards to Socket and checks that its caller keeps NCCL's rules.
// Every breach is one line "violation: ..." in the log.
//
// Environment: SOFTNET_CHECK_LOG=FILE (appended to; else standard error, violations only),
// SOFTNET_CHECK_NULLS=K (every K-th connect, accept, isend, irecv on average is answered "not
// now"), SOFTNET_CHECK_FAIL=NAME:init|devices|nodevices, SOFTNET_CHECK_GDR=1 (takes device memory
// and has to be asked to flush it), SOFTNET_CHECK_EARLY=1 (receives that allow it are said to be
// done before their bytes are there), SOFTNET_CHECK_CALLS=FILE (trace.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "deft/abi/net.h"

namespace softdev::net::checking {

const char* name();

// "<pid> <name> <text>" to the log file.
[[gnu::format(printf, 1, 2)]] void note(const char* format, ...);
[[gnu::format(printf, 1, 2)]] void violation(const char* format, ...);

// The calls of the v12 table. `abi` is the version the caller came through; contexts of versions
// up to v10 are NULL.
int init(int abi, void** ctx, uint64_t comm_id, const deft_net_comm_config_t* config);
int finalize(void* ctx);
int devices(int* count);
int properties(int device, deft_net_props_v12_t* props);
int listen(void* ctx, int device, void* handle, void** listen_comm);
int connect(void* ctx, int device, void* handle, void** send_comm);
int accept(void* listen_comm, void** recv_comm);
int reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle);
int dereg_mr(void* comm, void* mhandle);
int isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void** request);
int irecv(void* comm, int n, void** data, const size_t* bytes, const int* tags, void** mhandles,
          void** request);
int iflush(void* comm, int n, void** data, const int* bytes, void** mhandles, void** request);
int consumed(void* comm, int n, void* request);
void set_attributes(void* ctx, const deft_net_attr_t* attributes);
int test(void* request, int* done, int* sizes);
enum class CommKind { Send, Receive, Listen };
int close(void* comm, CommKind kind);
// When the file is unloaded.
void shut_down();

}  // namespace softdev::net::checking
