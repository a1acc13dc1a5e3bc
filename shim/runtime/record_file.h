// SPDX-License-Identifier: Apache-2.0
// The file in which the ranks of one host keep their records: a line each. docs/observe.md.
#pragma once

#include <cstdint>
#include <string>

namespace deft {

// What a rank writes of itself, as one line of JSON that begins with record_prefix().
struct Record {
    int rank = 0;
    std::uint64_t writer = 0;  // of every process and device another
    std::string line;          // with its end
};

// "{"format":"deft-observe","version":1,"rank":3,"writer":"00..07": by this a rank finds its own
// record again, and its place among the others. Pure.
std::string record_prefix(int rank, std::uint64_t writer);

// What becomes of a file that an earlier job has left under this name.
enum class Earlier : std::uint8_t {
    Look,     // it may not be one: this process has written to it
    Keep,     // it gets the time of its end behind its name: "deft-a.json.20261126T150750Z"
    Replace,  // it goes
};

constexpr int kNotAFile = -1;

// Puts the record into the file `named`, or the one that this link leads to: in the place of the
// writer's last one, next to those of the others, in order of ranks. The file is replaced in one
// step (a temporary file beside it, then rename). `started_ns`: when the process was, since 1970;
// what was written before that is an earlier job's. Ranks take turns by a lock on the folder, for
// which this waits half a second. /dev/null takes all. Returns 0, errno (EWOULDBLOCK: the lock is
// another's), or kNotAFile where something else is there. Throws std::bad_alloc.
int put_record(const std::string& named, const Record& record, Earlier earlier,
               std::int64_t started_ns);

// Takes the writer's record out again, and the file away with the last one.
void drop_record(const std::string& named, std::uint64_t writer);

}  // namespace deft
