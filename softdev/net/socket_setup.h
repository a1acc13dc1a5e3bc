// SPDX-License-Identifier: Apache-2.0
// Connection set-up of the Socket transport: polled and non-blocking. A handle carries the address
// and a secret; whoever connects without it is dropped and the listener goes on.
#pragma once

#include "softdev/net/interfaces.h"

namespace softdev::net {

struct SetupContext;    // a communicator's unfinished connects, freed with it
struct SocketListener;  // a listen comm

SetupContext* setup_begin();
void setup_end(SetupContext* context);

// Results as the table's calls; the comms made are SocketComm.
int setup_listen(const Interface& device, void* handle, SocketListener** listener);
int setup_connect(SetupContext* context, const Interface& device, void* handle, void** send_comm);
int setup_accept(SocketListener* listener, void** recv_comm);
void setup_close(SocketListener* listener);

}  // namespace softdev::net
