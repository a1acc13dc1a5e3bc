// SPDX-License-Identifier: Apache-2.0
// Where libnccl-net-deft.so is, and how a path to it is put into LD_PRELOAD.
#pragma once

#include <string>
#include <string_view>

#include "tools/environment.h"

namespace deft::tools {

inline constexpr std::string_view kLibraryName = "libnccl-net-deft.so";
// The preload of fleets, which opens the library at the first NCCL call (shim/preload).
inline constexpr std::string_view kGuestName = "libdeft-preload.so";

// A library found, or why not (path empty, error one clear line).
struct Library {
    std::string path;  // absolute
    std::string error;
};

// `wanted` as given with --library, or if empty: beside an installed command (../lib...), else in
// the build tree (../packaging). The file must be a shared object of this machine.
Library find_library(const std::string& wanted);

// The same, for a command whose own absolute path is `executable`.
Library find_library(const std::string& wanted, const std::string& executable);

// The folders with what watches a PyTorch job (companion/), and with deft.py: of an installation,
// else of the build tree; empty if it is in neither.
std::string find_companion();
std::string find_python_module();

// What library_version() begins with where there is none.
inline constexpr std::string_view kNotLoaded = "cannot be loaded";

// The version the library itself states, or why it cannot be loaded ("cannot be loaded: ...").
std::string library_version(const std::string& path);

// Puts the library first in LD_PRELOAD and keeps what is there. The loader splits LD_PRELOAD at
// blanks and colons and expands '$' (ld.so(8)), with no way to quote: a path with a blank, ':', ';'
// or '$' goes by a symbolic link in a private folder.
// here: the command runs on this host and not on others, which have no such link. Otherwise, and
// where no link can be made, a path with a blank goes by name and LD_LIBRARY_PATH; that is the
// second choice, as jobs may set LD_LIBRARY_PATH themselves. And only here: a program that is
// preloaded by its maker (memory savers are) may take the whole variable for the path of its own
// library. If there is just one such path, the library is put before it by a name in the private
// folder under which the whole variable still names that file.
// Returns an empty string, or what went wrong.
std::string add_preload(Environment& environment, const std::string& path, bool here = false);

}  // namespace deft::tools
