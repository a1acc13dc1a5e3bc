// SPDX-License-Identifier: Apache-2.0
// How many descriptors the agreement may take. The last ones are the job's: 256, or a quarter of a
// small limit.
#pragma once

namespace deft::agreement {

// Another one leaves the job enough. `like`: any open descriptor.
bool room_for_one_more(int like);

// The same in a process that leads many hosts, which may need more than its soft limit. Raises that
// limit as far as needed, to the hard one at most; a later exec() passes it on. False: one WARN has
// said why.
bool make_room_for_one_more(int like);

}  // namespace deft::agreement
