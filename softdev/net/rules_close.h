// SPDX-License-Identifier: Apache-2.0
// Scenarios in which connections end, or never come to be.
#pragma once

namespace softdev::net {

struct Side;

void late_accept(Side& side);
void unused_listen_and_handle(Side& side);
void unaccepted_connect(Side& side);
void close_with_requests_in_flight(Side& side);
void peer_closes_first(Side& side);
void sender_closes_after_last_byte(Side& side);
void abort_anywhere(Side& side);

}  // namespace softdev::net
