// SPDX-License-Identifier: Apache-2.0
#include "tools/elf_dynamic.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/unique_fd.h"
#include "tools/elf_file.h"

namespace deft::tools {
namespace {

constexpr std::size_t kMostEntries = std::size_t{1} << 22;  // symbols, sections: a broken file

// A file's bytes, as long as this lives. Empty if it cannot be mapped.
class MappedFile {
public:
    explicit MappedFile(const std::string& path) {
        const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        struct stat status {};
        if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
            status.st_size == 0) {
            return;
        }
        size_ = static_cast<std::size_t>(status.st_size);
        address_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    }
    ~MappedFile() {
        if (address_ != MAP_FAILED) {
            ::munmap(address_, size_);
        }
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::string_view bytes() const {
        return address_ == MAP_FAILED ? std::string_view()
                                      : std::string_view(static_cast<const char*>(address_), size_);
    }

private:
    void* address_ = MAP_FAILED;
    std::size_t size_ = 0;
};

class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}

    template <typename T>
    std::optional<T> at(std::uint64_t offset) const {
        if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) {
            return std::nullopt;
        }
        T value;
        std::memcpy(&value, bytes_.data() + offset, sizeof value);
        return value;
    }
    std::string text(std::uint64_t offset) const {
        constexpr std::size_t kLongest = 4096;
        const std::string_view rest =
            offset < bytes_.size() ? bytes_.substr(offset, kLongest) : std::string_view();
        return std::string(rest.substr(0, rest.find('\0')));
    }
    // Where in the file the loader takes this address from; the file's end if nowhere.
    std::uint64_t offset_of(const Elf64_Ehdr& header, std::uint64_t address) const {
        for (unsigned i = 0; i < header.e_phnum; ++i) {
            const auto segment =
                at<Elf64_Phdr>(header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
            if (segment && segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
                address - segment->p_vaddr < segment->p_filesz) {
                return segment->p_offset + (address - segment->p_vaddr);
            }
        }
        return bytes_.size();
    }

private:
    std::string_view bytes_;
};

// The tables that the dynamic segment names, as places in the file.
struct Tables {
    std::uint64_t strings = 0, versions_needed = 0, versions_defined = 0;
    std::vector<std::uint64_t> needed;  // offsets of names
    std::uint64_t soname = 0, rpath = 0, runpath = 0;
};

Tables read_tables(const Reader& file, const Elf64_Ehdr& header) {
    Tables tables;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        const auto segment =
            file.at<Elf64_Phdr>(header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
        if (!segment || segment->p_type != PT_DYNAMIC) {
            continue;
        }
        for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= segment->p_filesz;
             at += sizeof(Elf64_Dyn)) {
            const auto entry = file.at<Elf64_Dyn>(segment->p_offset + at);
            if (!entry || entry->d_tag == DT_NULL) {
                break;
            }
            const std::uint64_t value = entry->d_un.d_val;
            switch (entry->d_tag) {
                case DT_STRTAB:
                    tables.strings = file.offset_of(header, value);
                    break;
                case DT_VERNEED:
                    tables.versions_needed = file.offset_of(header, value);
                    break;
                case DT_VERDEF:
                    tables.versions_defined = file.offset_of(header, value);
                    break;
                case DT_NEEDED:
                    tables.needed.push_back(value);
                    break;
                case DT_SONAME:
                    tables.soname = value;
                    break;
                case DT_RPATH:
                    tables.rpath = value;
                    break;
                case DT_RUNPATH:
                    tables.runpath = value;
                    break;
                default:
                    break;
            }
        }
    }
    return tables;
}

// The newer of a version so far and "GLIBC_2.28"; others do not count.
void note_glibc(const std::string& name, std::string& newest) {
    constexpr std::string_view kPrefix = "GLIBC_";
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() || name[kPrefix.size()] < '0' ||
        name[kPrefix.size()] > '9') {
        return;
    }
    const std::string version = name.substr(kPrefix.size());
    if (newest.empty() || older_version(newest, version)) {
        newest = version;
    }
}

std::string newest_needed(const Reader& file, const Tables& tables) {
    std::string newest;
    std::uint64_t at = tables.versions_needed;
    for (std::size_t i = 0; at != 0 && i < kMostEntries; ++i) {
        const auto library = file.at<Elf64_Verneed>(at);
        if (!library) {
            break;
        }
        std::uint64_t version_at = at + library->vn_aux;
        for (unsigned j = 0; j < library->vn_cnt; ++j) {
            const auto version = file.at<Elf64_Vernaux>(version_at);
            if (!version) {
                break;
            }
            note_glibc(file.text(tables.strings + version->vna_name), newest);
            version_at += version->vna_next;
        }
        at = library->vn_next == 0 ? 0 : at + library->vn_next;
    }
    return newest;
}

std::string newest_defined(const Reader& file, const Tables& tables) {
    std::string newest;
    std::uint64_t at = tables.versions_defined;
    for (std::size_t i = 0; at != 0 && i < kMostEntries; ++i) {
        const auto version = file.at<Elf64_Verdef>(at);
        const auto name = version ? file.at<Elf64_Verdaux>(at + version->vd_aux) : std::nullopt;
        if (!name) {
            break;
        }
        note_glibc(file.text(tables.strings + name->vda_name), newest);
        at = version->vd_next == 0 ? 0 : at + version->vd_next;
    }
    return newest;
}

constexpr std::string_view kNetPlugin = "ncclNetPlugin_v";
constexpr std::string_view kTunerPlugin = "ncclTunerPlugin_v";

void note_symbol(const std::string& name, bool defined, ElfDynamic& found) {
    if (name == "ncclAllReduce" || name == "pncclAllReduce") {
        (defined ? found.exports_nccl : found.imports_nccl) = true;
    } else if (name.starts_with(kNetPlugin) && defined) {
        found.net_abis.push_back(std::atoi(name.c_str() + kNetPlugin.size()));
    } else if (name.starts_with(kTunerPlugin) && defined) {
        found.tuner_abis.push_back(std::atoi(name.c_str() + kTunerPlugin.size()));
    } else if (name == "dlsym" && !defined) {
        found.imports_dlsym = true;
    } else if (name == "deft_version" && defined) {
        found.is_deft = true;
    }
}

// Sections of symbols; and where the file's tables of names lie, which are no texts of its own.
struct Sections {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> names;  // offset, size
    bool defines_nccl = false;
};

void read_symbols(const Reader& file, const Elf64_Shdr& table, const Elf64_Shdr& names,
                  Sections& sections, ElfDynamic& found) {
    const std::uint64_t count =
        std::min<std::uint64_t>(table.sh_size / sizeof(Elf64_Sym), kMostEntries);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto symbol = file.at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
        if (!symbol || symbol->st_name == 0) {
            continue;
        }
        const std::string name = file.text(names.sh_offset + symbol->st_name);
        const bool defined = symbol->st_shndx != SHN_UNDEF;
        if (table.sh_type == SHT_DYNSYM) {
            note_symbol(name, defined, found);
        } else if (defined && (name == "ncclAllReduce" || name == "pncclAllReduce")) {
            sections.defines_nccl = true;
        }
    }
}

Sections read_sections(const Reader& file, const Elf64_Ehdr& header, ElfDynamic& found) {
    Sections sections;
    const auto section = [&](std::uint64_t index) {
        return file.at<Elf64_Shdr>(header.e_shoff + index * sizeof(Elf64_Shdr));
    };
    for (unsigned i = 0; header.e_shoff != 0 && i < header.e_shnum; ++i) {
        const auto table = section(i);
        if (table && table->sh_type == SHT_STRTAB) {
            sections.names.emplace_back(table->sh_offset, table->sh_size);
        }
        if (!table || (table->sh_type != SHT_DYNSYM && table->sh_type != SHT_SYMTAB)) {
            continue;
        }
        if (const auto names = section(table->sh_link)) {
            read_symbols(file, *table, *names, sections, found);
        }
    }
    return sections;
}

void read_texts(std::string_view bytes, const Sections& sections, ElfDynamic& found) {
    constexpr std::string_view kVersion = "NCCL version ";
    for (std::size_t at = bytes.find(kVersion); at != bytes.npos;
         at = bytes.find(kVersion, at + 1)) {
        const std::string_view rest = bytes.substr(at + kVersion.size(), 64);
        const std::string_view text =
            rest.substr(0, rest.find_first_of(std::string_view("\0 \n", 3)));
        // NCCL's own is a text by itself, "NCCL version 2.27.7+cuda12.9"; PyTorch has messages that
        // say which version a function needs.
        const bool begins = at == 0 || bytes[at - 1] == '\0';
        if (begins && !text.empty() && text[0] >= '0' && text[0] <= '9' &&
            text.find("+cuda") != text.npos) {
            found.nccl_version = text;
            break;
        }
    }
    constexpr std::string_view kName = "ncclAllReduce";
    for (std::size_t at = bytes.find(kName); at != bytes.npos; at = bytes.find(kName, at + 1)) {
        const bool name =
            std::any_of(sections.names.begin(), sections.names.end(), [&](const auto& table) {
                return at >= table.first && at - table.first < table.second;
            });
        if (!name) {
            found.names_nccl = true;
            break;
        }
    }
}

}  // namespace

bool older_version(const std::string& left, const std::string& right) {
    const char* a = left.c_str();
    const char* b = right.c_str();
    while (*a != '\0' || *b != '\0') {
        char* a_end = nullptr;
        char* b_end = nullptr;
        const long x = std::strtol(a, &a_end, 10);
        const long y = std::strtol(b, &b_end, 10);
        if (x != y) {
            return x < y;
        }
        a = *a_end == '.' ? a_end + 1 : a_end + std::strlen(a_end);
        b = *b_end == '.' ? b_end + 1 : b_end + std::strlen(b_end);
    }
    return false;
}

ElfDynamic read_elf_dynamic(const std::string& path, bool texts) {
    ElfDynamic found;
    const ElfFile elf = read_elf(path);
    if (elf.kind != ElfFile::Kind::Elf || !elf.this_machine) {
        return found;
    }
    const MappedFile mapped(path);
    const Reader file(mapped.bytes());
    const auto header = file.at<Elf64_Ehdr>(0);
    if (!header) {
        return found;
    }
    found.readable = true;
    const Tables tables = read_tables(file, *header);
    const auto named = [&](std::uint64_t name) {
        return name == 0 ? std::string() : file.text(tables.strings + name);
    };
    for (const std::uint64_t name : tables.needed) {
        found.needed.push_back(named(name));
    }
    found.soname = named(tables.soname);
    found.rpath = named(tables.rpath);
    found.runpath = named(tables.runpath);
    found.glibc_needed = newest_needed(file, tables);
    found.glibc_offered = newest_defined(file, tables);
    const Sections sections = read_sections(file, *header, found);
    if (texts) {
        read_texts(mapped.bytes(), sections, found);
    }
    std::sort(found.net_abis.begin(), found.net_abis.end());
    std::sort(found.tuner_abis.begin(), found.tuner_abis.end());
    found.holds_nccl = found.exports_nccl || sections.defines_nccl || !found.nccl_version.empty();
    return found;
}

}  // namespace deft::tools
