// SPDX-License-Identifier: Apache-2.0
// Keeps the record of one rank in the file that DEFT_OUT names.
#pragma once

#include <cstdint>
#include <string>

#include "shim/learning/track.h"
#include "shim/runtime/report.h"

namespace deft {

// Records are written at all: observing is for them; a mode that plans writes them where the
// operator has asked for it.
bool keeps_records();

// The background thread's, or the one's in exit(). Waits for files, and half a second for a lock.
class RecordKeeper {
public:
    // Writes what is known. False: another rank of this host keeps the file locked; try again soon.
    // What else goes wrong is said once.
    bool put(ReportFacts& facts, const Track* track);

private:
    std::uint64_t writer_ = 0;  // 0: nothing has been written yet
    std::string path_;          // last written
};

}  // namespace deft
