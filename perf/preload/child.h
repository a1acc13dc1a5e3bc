// SPDX-License-Identifier: Apache-2.0
// This program once more, with another preload and environment.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace deft::hook_cost {

struct Child {
    pid_t pid = -1;
    int output = -1;  // reading end of its standard output
};

// A name for the library that LD_PRELOAD can carry, as `deft run` makes one: the loader splits the
// variable at blanks and colons, and the path of a build may hold them. Ends the program if there
// is none. The link goes when the object does.
class PreloadName {
public:
    explicit PreloadName(const std::string& library);
    ~PreloadName();
    PreloadName(const PreloadName&) = delete;
    PreloadName& operator=(const PreloadName&) = delete;
    const std::string& text() const { return text_; }

private:
    std::string text_;
    std::string folder_;  // empty: the path is such a name itself
};

// Without anything of deft's in its environment, but for `mode` and `settings`; mode "": without
// the preload. `extra` (-1: none) becomes its descriptor 3. Ends the program if it cannot be done.
Child start(const std::string& library, const std::string& mode,
            const std::map<std::string, std::string>& settings,
            const std::vector<std::string>& arguments, int extra = -1);

// What it has written, when it has ended. False: it ended badly.
bool finish(Child& child, std::string& output);

// In a child: false, and said, if a preload that was asked for is not there.
bool preloaded();

}  // namespace deft::hook_cost
