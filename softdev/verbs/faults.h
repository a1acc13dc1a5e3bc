// SPDX-License-Identifier: Apache-2.0
// What the device does wrong on purpose: SOFTDEV_VERBS_FAULTS, "NAME=VALUE,NAME=VALUE".
#pragma once

#include <cstdint>
#include <string>

namespace softdev::verbs {

enum class Fault : unsigned {
    lose_acks,      ///< a queue pair's acknowledgements vanish from this request on
    resend,         ///< the first copy of a request is lost, and its buffer read again
    late_write,     ///< what a queue pair had posted still lands after its flush
    reg_fails,      ///< a registration fails with ENOMEM
    event_missing,  ///< a port event is never told
    event_late,     ///< a port event is told event_late_ms later
    modify_slow,    ///< modify_qp to RTR takes modify_slow_ms
    shuffle,        ///< a write's bytes are placed last first, after those of later writes
    complete_late,  ///< a receive completion comes complete_late_ms later
    flush_lost,     ///< a queue pair's requests never complete once it is in the error state
    gpu_late,       ///< a GPU sees a write when the device is read through, or gpu_late_ms later
    count
};

/// Replaces all faults. False: the text is wrong, and nothing has changed; `error` says why.
bool set_faults(const std::string& text, std::string& error);

/// Whether the fault happens here. Counts the occasions, and what was injected.
bool inject(Fault fault);

/// How long the fault lasts or waits, from its NAME_ms.
int milliseconds(Fault fault);

/// How often a fault was injected in this process; -1: there is no fault of that name.
long injected(const std::string& name);

}  // namespace softdev::verbs
