// SPDX-License-Identifier: Apache-2.0
// A configuration file as the lines that hold for a job: comments, quotes and sections are dealt
// with here, names and values by Config.
//
//   DEFT_LOG=info           # a job may set another value
//   force.DEFT_MODE=off     # a job may not
//   ceiling=exact           # nor go beyond this; short for ceiling.DEFT_MODE=exact
//   kill=/etc/deft/stop     # short for force.DEFT_KILL_FILE=/etc/deft/stop
//   [partition=debug*,test user=alice]    # up to the next section; [*]: for all again
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/job_identity.h"

namespace deft {

struct ConfigLine {
    enum class Kind : std::uint8_t { Set, Force, Ceiling };
    Kind kind = Kind::Set;
    std::string name;
    std::string written;  // the name as it stands in the file: "force.DEFT_MODE", "kill"
    std::string value;
    std::string origin;  // "FILE:LINE", "FILE:LINE, section [...]"
};

struct ConfigFile {
    std::string shown;  // the path, fit for a message
    std::string error;  // why it cannot be read; empty: it can
    bool absent = false;
    // Why its force and ceiling lines count for nothing; empty: the file binds nobody else, or it
    // is root's or this user's, and nobody else may write to it.
    std::string insecure;
    std::vector<ConfigLine> lines;
    std::vector<std::string> problems;  // lines that are wrong, but for names and values
};

// `binding`: what the file forces binds jobs of other users too, so not everybody may write to it.
ConfigFile read_config_file(const std::string& path, const JobIdentity& job, bool binding);

// What of a file is shown in messages: one line, without control characters, not endless.
std::string shown_text(std::string_view text);

}  // namespace deft
