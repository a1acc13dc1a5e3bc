// SPDX-License-Identifier: Apache-2.0
// What a file that is written beside its place and renamed may take the place of.
#pragma once

#include <string>

namespace deft {

enum class Place {
    Replaceable,  // nothing is there, or a file
    Nowhere,      // /dev/null: nobody wants to read it
    Other,        // a device, a FIFO, a folder, a link into /dev or /proc: it has to stay
};

// Looks at `path`, and makes it the file that a symbolic link leads to. Any thread; does not block.
Place place_of(std::string& path);

}  // namespace deft
