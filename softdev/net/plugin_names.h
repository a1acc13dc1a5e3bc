// SPDX-License-Identifier: Apache-2.0
// NCCL's rules for which files NCCL_NET_PLUGIN names and which table versions are looked for, by
// NCCL release. Pure.
#pragma once

#include <string>
#include <vector>

namespace softdev::net {

inline constexpr int kDefaultNcclVersion = 22809;
inline constexpr int kOldestNcclVersion = 21300;  // first with v6 tables

// "22809" -> 22809. 0 and *error set if it is no release from 2.13 on.
int parse_nccl_version(const char* text, std::string* error);

// Newest first; e.g. 11..6 for 2.28.
std::vector<int> abi_versions(int nccl_version);

// The names NCCL_NET_PLUGIN holds; value NULL means unset. Empty result: no external plugin. What
// NCCL drops (too many, too long) is told in *remarks, a line each.
std::vector<std::string> plugin_names(const char* value, int nccl_version,
                                      std::vector<std::string>* remarks);

// True if the name stands for the program itself and what is preloaded (dlopen(NULL)). NCCL
// compares as many characters as the name has, so every prefix of STATIC_PLUGIN does.
bool means_static_plugin(const std::string& name, int nccl_version);

// What is tried in turn with dlopen for one name.
std::vector<std::string> dlopen_candidates(const std::string& name, int nccl_version);

}  // namespace softdev::net
