// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/calling_module.h"

#include <dlfcn.h>
#include <elf.h>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>

#include "base/hot_path.h"

namespace deft {
namespace {

// The parts of a module's dynamic section that tell what it refers to.
class Dynamic {
public:
    Dynamic(ElfW(Addr) moved, const ElfW(Dyn) * section) : moved_(moved) {
        for (const ElfW(Dyn)* entry = section; entry != nullptr && entry->d_tag != DT_NULL;
             ++entry) {
            take(*entry);
        }
        readable_ = symbols_ != nullptr && names_ != nullptr;
    }

    explicit operator bool() const { return readable_; }

    const ElfW(Sym) & symbol(std::uint32_t index) const { return symbols_[index]; }
    const char* name(std::uint32_t index) const { return names_ + symbols_[index].st_name; }

    // In the table for the GNU hash what is only referred to comes first. 0: there is no such hash.
    std::uint32_t first_defined() const { return hash_ != nullptr ? hash_[1] : 0; }
    // The last but those that share its place in the hash; 0: nothing is defined.
    std::uint32_t last_defined() const {
        if (hash_ == nullptr) {
            return 0;
        }
        const std::uint32_t filter = hash_[2] * (sizeof(ElfW(Addr)) / sizeof(*hash_));
        const std::uint32_t* const chains = hash_ + 4 + filter;
        return *std::max_element(chains, chains + hash_[0]);
    }

    // Where calls and taken addresses are resolved to.
    std::span<const ElfW(Rela)> call_slots() const { return call_slots_; }
    std::span<const ElfW(Rela)> other_slots() const { return other_slots_.subspan(relative_); }
    static std::uint32_t symbol_of(const ElfW(Rela) & slot) {
        return static_cast<std::uint32_t>(ELF64_R_SYM(slot.r_info));
    }
    const void* address(std::uint32_t index) const {
        return reinterpret_cast<const void*>(moved_ + symbols_[index].st_value);
    }
    const void* target(const ElfW(Rela) & slot) const {
        return *reinterpret_cast<const void* const*>(moved_ + slot.r_offset);
    }

private:
    // Some loaders leave the file's addresses in the section, most put the process's there.
    template <class T>
    const T* at(ElfW(Addr) address) const {
        return reinterpret_cast<const T*>(address < moved_ ? address + moved_ : address);
    }
    static void resize(std::span<const ElfW(Rela)>& slots, std::size_t bytes) {
        slots = {slots.data(), bytes / sizeof(ElfW(Rela))};
    }

    void take(const ElfW(Dyn) & entry) {
        switch (entry.d_tag) {
            case DT_SYMTAB:
                symbols_ = at<ElfW(Sym)>(entry.d_un.d_ptr);
                break;
            case DT_STRTAB:
                names_ = at<char>(entry.d_un.d_ptr);
                break;
            case DT_GNU_HASH:
                hash_ = at<std::uint32_t>(entry.d_un.d_ptr);
                break;
            case DT_JMPREL:
                call_slots_ = {at<ElfW(Rela)>(entry.d_un.d_ptr), call_slots_.size()};
                break;
            case DT_PLTRELSZ:
                resize(call_slots_, entry.d_un.d_val);
                break;
            case DT_RELA:
                other_slots_ = {at<ElfW(Rela)>(entry.d_un.d_ptr), other_slots_.size()};
                break;
            case DT_RELASZ:
                resize(other_slots_, entry.d_un.d_val);
                break;
            case DT_RELACOUNT:
                relative_ = entry.d_un.d_val;
                break;
            default:
                break;
        }
    }

    ElfW(Addr) moved_;  // from the file's addresses to the process's
    const ElfW(Sym) * symbols_ = nullptr;
    const char* names_ = nullptr;
    const std::uint32_t* hash_ = nullptr;
    std::span<const ElfW(Rela)> call_slots_;
    std::span<const ElfW(Rela)> other_slots_;
    std::size_t relative_ = 0;  // of the other slots: the first ones, which have no symbol
    bool readable_ = false;
};
static_assert(sizeof(void*) == 8, "relocations are read as those of a 64-bit machine");

bool is_nccl(const char* name) {
    return std::strncmp(name, "nccl", 4) == 0;
}

// NCCL refers to some of its own functions as other modules do; these it calls directly.
bool is_of_users(const char* name) {
    constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduceScatter", "ncclGroupStart",
                                      "ncclCommInitRank"};
    return std::any_of(std::begin(kNames), std::end(kNames), [name](const char* one) {
        return std::strncmp(name, one, std::strlen(one)) == 0;
    });
}

// [low, high) of an object's code and data.
struct Range {
    std::uintptr_t low = ~std::uintptr_t{0};
    std::uintptr_t high = 0;
    bool contains(const void* address) const {
        const auto at = reinterpret_cast<std::uintptr_t>(address);
        return low <= at && at < high;
    }
};

Range range_of(const dl_phdr_info& info) {
    Range range;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = info.dlpi_phdr[i];
        if (segment.p_type == PT_LOAD) {
            const std::uintptr_t begin = info.dlpi_addr + segment.p_vaddr;
            range.low = std::min(range.low, begin);
            range.high = std::max<std::uintptr_t>(range.high, begin + segment.p_memsz);
        }
    }
    return range;
}

constexpr std::uintptr_t kFirstPage = 4096;

// Where a note segment has the build id, from the start of the module's first page; 0 if it has
// none there.
std::uint16_t id_in(std::uintptr_t note, std::uintptr_t end, std::uintptr_t low) {
    constexpr auto round_up = [](std::uintptr_t size) { return (size + 3) & ~std::uintptr_t{3}; };
    while (note + sizeof(ElfW(Nhdr)) + sizeof(ELF_NOTE_GNU) <= end) {
        const auto& head = *reinterpret_cast<const ElfW(Nhdr)*>(note);
        const std::uintptr_t name = note + sizeof(head);
        const std::uintptr_t value = name + round_up(head.n_namesz);
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof(ELF_NOTE_GNU) &&
            std::memcmp(reinterpret_cast<const void*>(name), ELF_NOTE_GNU, head.n_namesz) == 0) {
            const std::uintptr_t at = value - (low & ~(kFirstPage - 1));
            const bool near = at <= kFirstPage - sizeof(std::uint64_t);
            return near && head.n_descsz >= sizeof(std::uint64_t) ? static_cast<std::uint16_t>(at)
                                                                  : 0;
        }
        note = value + round_up(head.n_descsz);
    }
    return 0;
}

std::uint16_t id_of(const dl_phdr_info& info, const Range& range) {
    std::uint16_t found = 0;
    for (int i = 0; i < info.dlpi_phnum && found == 0; ++i) {
        const ElfW(Phdr)& segment = info.dlpi_phdr[i];
        if (segment.p_type == PT_NOTE) {
            const std::uintptr_t begin = info.dlpi_addr + segment.p_vaddr;
            found = id_in(begin, begin + segment.p_memsz, range.low);
        }
    }
    return found;
}

struct Wanted {
    const void* address;
    Range range;
    std::uint16_t id_at = 0;
};

int find_range(dl_phdr_info* info, std::size_t, void* argument) {
    auto& wanted = *static_cast<Wanted*>(argument);
    const Range range = range_of(*info);
    if (!range.contains(wanted.address)) {
        return 0;
    }
    wanted.range = range;
    wanted.id_at = id_of(*info, range);
    return 1;
}

// A slot that leads back into the module is the loader's, which has not been asked yet; but for
// functions that the module has itself.
bool waits(const Range& module, const Dynamic& dynamic, const ElfW(Rela) & slot) {
    const std::uint32_t symbol = Dynamic::symbol_of(slot);
    const void* const target = dynamic.target(slot);
    const bool own =
        dynamic.symbol(symbol).st_shndx != SHN_UNDEF && target == dynamic.address(symbol);
    return !own && module.contains(target);
}

// A module's references to NCCL.
struct References {
    bool any = false;
    bool of_users = false;
    bool waiting = false;  // a call that the loader has not been asked for yet
    int calls = 0;         // of functions that others have
    int all = 0;           // the same, and addresses taken of them

    void note(const char* name) {
        any = true;
        if (is_of_users(name)) {
            of_users = true;
        }
    }
};

References references_of(const Range& module, const Dynamic& dynamic) {
    References found;
    for (const ElfW(Rela) & slot : dynamic.call_slots()) {
        const std::uint32_t symbol = Dynamic::symbol_of(slot);
        if (is_nccl(dynamic.name(symbol))) {
            found.note(dynamic.name(symbol));
            found.calls += dynamic.symbol(symbol).st_shndx == SHN_UNDEF ? 1 : 0;
            if (waits(module, dynamic, slot)) {
                found.waiting = true;
            }
        }
    }
    for (std::uint32_t i = 1; i < dynamic.first_defined(); ++i) {
        if (is_nccl(dynamic.name(i))) {
            found.note(dynamic.name(i));
            ++found.all;
        }
    }
    if (dynamic.first_defined() > 1) {
        return found;
    }
    // A module that defines nothing may have its references anywhere in the table.
    found.all = found.calls;
    for (const ElfW(Rela) & slot : dynamic.other_slots()) {
        const char* const name = dynamic.name(Dynamic::symbol_of(slot));
        if (is_nccl(name)) {
            found.note(name);
            ++found.all;
        }
    }
    return found;
}

Binding binding_of(const References& references) {
    if (!references.any) {
        return Binding::None;
    }
    // An address that is taken is resolved at once, even where calls wait.
    return references.waiting && references.all == references.calls ? Binding::Lazy
                                                                    : Binding::AtLoad;
}

int collect_bound(dl_phdr_info* info, std::size_t, void* argument) {
    const ElfW(Dyn)* section = nullptr;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = info->dlpi_phdr[i];
        if (segment.p_type == PT_DYNAMIC) {
            section = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + segment.p_vaddr);
        }
    }
    const Range range = range_of(*info);
    const Dynamic dynamic(info->dlpi_addr, section);
    if (!dynamic) {
        return 0;
    }
    const References references = references_of(range, dynamic);
    if (references.of_users && binding_of(references) == Binding::AtLoad) {
        static_cast<std::vector<const void*>*>(argument)->push_back(
            reinterpret_cast<const void*>(range.low));
    }
    return 0;
}

// struct dl_find_object of glibc 2.35, with room to spare; older headers lack it.
struct FoundObject {
    unsigned long long flags;
    void* start;
    void* rest[30];
};
using FindObject = int (*)(const void*, FoundObject*);
constinit std::atomic<FindObject> g_find_object{nullptr};

// Which of two comes first among the loaded objects, whose order is that of their loading.
struct Order {
    const void* one;
    const void* other;
    int first = 0;  // 1 or 2; 0: neither was seen
};

int find_first(dl_phdr_info* info, std::size_t, void* argument) {
    auto& order = *static_cast<Order*>(argument);
    const Range range = range_of(*info);
    order.first = range.contains(order.one) ? 1 : range.contains(order.other) ? 2 : 0;
    return order.first;
}

}  // namespace

CallingModule CallingModule::of(const void* address) noexcept {
    CallingModule found;
    Dl_info info;
    void* map = nullptr;
    if (address == nullptr || ::dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0 ||
        map == nullptr) {
        return found;
    }
    Wanted wanted{address, {}, 0};
    if (::dl_iterate_phdr(find_range, &wanted) == 0) {
        return found;
    }
    found.map = static_cast<const link_map*>(map);
    found.low = wanted.range.low;
    found.high = wanted.range.high;
    found.id_at = wanted.id_at;
    if (const Dynamic dynamic(found.map->l_addr, found.map->l_ld); dynamic) {
        found.binding = binding_of(references_of(wanted.range, dynamic));
    }
    return found;
}

std::vector<const void*> CallingModule::bound_at_load() {
    std::vector<const void*> found;
    ::dl_iterate_phdr(collect_bound, &found);
    return found;
}

bool CallingModule::loaded_after(const void* base) const noexcept {
    Order order{base, reinterpret_cast<const void*>(low)};
    ::dl_iterate_phdr(find_first, &order);
    return order.first == 1;
}

bool CallingModule::in_global_scope() const noexcept {
    if (is_program()) {
        return true;
    }
    const Dynamic dynamic(map->l_addr, map->l_ld);
    void* const program = dynamic ? ::dlopen(nullptr, RTLD_LAZY) : nullptr;
    if (program == nullptr) {
        return false;
    }
    constexpr std::uint32_t kLooks = 32;  // another module may have a symbol of the same name
    const std::uint32_t first = dynamic.first_defined();
    const std::uint32_t last = std::min(dynamic.last_defined(), first + kLooks);
    bool found = false;
    for (std::uint32_t i = first; i <= last && i != 0 && !found; ++i) {
        const void* const symbol = ::dlsym(program, dynamic.name(i));
        found = symbol != nullptr && contains(symbol);
    }
    ::dlclose(program);
    return found;
}

ModulePrint::ModulePrint(const CallingModule& module) noexcept {
    if (module.map == nullptr || module.is_program()) {
        return;  // what stays
    }
    const auto find = reinterpret_cast<FindObject>(::dlsym(RTLD_DEFAULT, "_dl_find_object"));
    FoundObject object;
    if (find == nullptr || find(reinterpret_cast<const void*>(module.low), &object) != 0) {
        return;
    }
    g_find_object.store(find, std::memory_order_release);
    start_ = reinterpret_cast<std::uintptr_t>(object.start);
    entry_ = word(start_, offsetof(ElfW(Ehdr), e_entry));
    sections_ = word(start_, offsetof(ElfW(Ehdr), e_shoff));
    id_at_ = module.id_at;
    id_ = id_at_ != 0 ? word(start_, id_at_) : 0;
}

// Only the first page of the object that is found is read, wherever it lies: the place itself may
// be no memory any more.
DEFT_NO_ARRAYS bool ModulePrint::fits(const void* address) const noexcept {
    if (start_ == 0) {
        return true;
    }
    FoundObject object;
    return g_find_object.load(std::memory_order_acquire)(address, &object) == 0 &&
           reinterpret_cast<std::uintptr_t>(object.start) == start_ &&
           word(start_, offsetof(ElfW(Ehdr), e_entry)) == entry_ &&
           word(start_, offsetof(ElfW(Ehdr), e_shoff)) == sections_ &&
           (id_at_ == 0 || word(start_, id_at_) == id_);
}

}  // namespace deft
