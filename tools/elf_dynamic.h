// SPDX-License-Identifier: Apache-2.0
// What the dynamic loader will read of an ELF file of this machine: the libraries it needs, where
// it looks for them, and the symbols that decide how NCCL is reached.
#pragma once

#include <string>
#include <vector>

namespace deft::tools {

struct ElfDynamic {
    bool readable = false;  // an ELF file of this machine
    std::string soname;
    std::vector<std::string> needed;
    std::string rpath, runpath;
    bool imports_nccl = false;    // refers to ncclAllReduce
    bool exports_nccl = false;    // shows ncclAllReduce or pncclAllReduce to others
    bool holds_nccl = false;      // has NCCL's code, shown or not
    bool names_nccl = false;      // holds the text "ncclAllReduce" among its own data
    bool imports_dlsym = false;   // looks symbols up by name
    bool is_deft = false;         // deft's library or its guest
    std::string nccl_version;     // "2.28.9+cuda13.0" by the text in it; empty: unknown
    std::vector<int> net_abis;    // versions of NCCL's network plugin that it offers, ascending
    std::vector<int> tuner_abis;  // likewise of NCCL's tuner
    std::string glibc_needed;     // newest GLIBC_ version that it asks for, "2.28"
    std::string glibc_offered;    // newest that it defines: of a C library
};

// `texts`: also look for texts, which means reading the whole file.
ElfDynamic read_elf_dynamic(const std::string& path, bool texts);

// True if `left` is the older of two versions like "2.28"; "2.4" is older than "2.28".
bool older_version(const std::string& left, const std::string& right);

}  // namespace deft::tools
