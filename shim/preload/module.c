/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shim/preload/module.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>

enum { kFirstPage = 4096, kLooks = 32, kBuildId = 3, kEntryAt = 24, kSectionsAt = 40 };

typedef int (*Visit)(struct dl_phdr_info*, size_t, void*);

static int visit_all(Visit visit, void* argument) {
    int (*const iterate)(Visit, void*) =
        (int (*)(Visit, void*))dlsym(RTLD_DEFAULT, "dl_iterate_phdr");
    return iterate != NULL ? iterate(visit, argument) : 0;
}

/* --- one module's own data ------------------------------------------------------------------- */

struct Dynamic {
    uintptr_t moved; /* from the file's addresses to the process's */
    const ElfW(Sym) * symbols;
    const char* names;
    const uint32_t* hash; /* GNU's; what is only referred to comes first in its table */
    const ElfW(Rela) * calls;
    const ElfW(Rela) * others;
    size_t calls_size, others_size, relative;
};

/* Some loaders leave the file's addresses in the section, most put the process's there. */
static const void* at(const struct Dynamic* dynamic, uintptr_t address) {
    return (const void*)(address < dynamic->moved ? address + dynamic->moved : address);
}

static int read_dynamic(struct Dynamic* dynamic, uintptr_t moved, const ElfW(Dyn) * entry) {
    dynamic->moved = moved;
    dynamic->symbols = NULL;
    dynamic->names = NULL;
    dynamic->hash = NULL;
    dynamic->calls = NULL;
    dynamic->others = NULL;
    dynamic->calls_size = 0;
    dynamic->others_size = 0;
    dynamic->relative = 0;
    for (; entry != NULL && entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_SYMTAB) {
            dynamic->symbols = at(dynamic, entry->d_un.d_ptr);
        } else if (entry->d_tag == DT_STRTAB) {
            dynamic->names = at(dynamic, entry->d_un.d_ptr);
        } else if (entry->d_tag == DT_GNU_HASH) {
            dynamic->hash = at(dynamic, entry->d_un.d_ptr);
        } else if (entry->d_tag == DT_JMPREL) {
            dynamic->calls = at(dynamic, entry->d_un.d_ptr);
        } else if (entry->d_tag == DT_PLTRELSZ) {
            dynamic->calls_size = entry->d_un.d_val / sizeof(ElfW(Rela));
        } else if (entry->d_tag == DT_RELA) {
            dynamic->others = at(dynamic, entry->d_un.d_ptr);
        } else if (entry->d_tag == DT_RELASZ) {
            dynamic->others_size = entry->d_un.d_val / sizeof(ElfW(Rela));
        } else if (entry->d_tag == DT_RELACOUNT) {
            dynamic->relative = entry->d_un.d_val;
        }
    }
    return dynamic->symbols != NULL && dynamic->names != NULL;
}

static const char* name_of(const struct Dynamic* dynamic, uint32_t symbol) {
    return dynamic->names + dynamic->symbols[symbol].st_name;
}

static int starts_with(const char* text, const char* start) {
    while (*start != '\0' && *text == *start) {
        ++text;
        ++start;
    }
    return *start == '\0';
}

/* NCCL refers to some of its own functions as other modules do; these it calls directly. */
static int is_of_users(const char* name) {
    return starts_with(name, "ncclAllReduce") || starts_with(name, "ncclReduceScatter") ||
           starts_with(name, "ncclGroupStart") || starts_with(name, "ncclCommInitRank");
}

struct References {
    int any, of_users;
    int waiting; /* a call that the loader has not been asked for yet */
    int calls;   /* of functions that others have */
    int all;     /* the same, and addresses taken of them */
};

static int note(struct References* found, const char* name) {
    if (!starts_with(name, "nccl")) {
        return 0;
    }
    found->any = 1;
    if (is_of_users(name)) {
        found->of_users = 1;
    }
    return 1;
}

static void note_calls(struct References* found, const struct Module* module,
                       const struct Dynamic* dynamic) {
    for (size_t i = 0; dynamic->calls != NULL && i < dynamic->calls_size; ++i) {
        const ElfW(Rela)* const slot = &dynamic->calls[i];
        const uint32_t symbol = (uint32_t)ELF64_R_SYM(slot->r_info);
        if (!note(found, name_of(dynamic, symbol))) {
            continue;
        }
        /* A slot that leads back into the module is the loader's; but for the module's own. */
        const ElfW(Sym)* const entry = &dynamic->symbols[symbol];
        const uintptr_t target = *(const uintptr_t*)(dynamic->moved + slot->r_offset);
        const int own = entry->st_shndx != SHN_UNDEF && target == dynamic->moved + entry->st_value;
        found->calls += entry->st_shndx == SHN_UNDEF;
        if (!own && module->low <= target && target < module->high) {
            found->waiting = 1;
        }
    }
}

static enum Binding binding_of(const struct Module* module, const struct Dynamic* dynamic,
                               int* of_users) {
    struct References found = {0, 0, 0, 0, 0};
    note_calls(&found, module, dynamic);
    const uint32_t defined = dynamic->hash != NULL ? dynamic->hash[1] : 0;
    for (uint32_t i = 1; i < defined; ++i) {
        found.all += note(&found, name_of(dynamic, i));
    }
    if (defined <= 1) { /* nothing is defined: the references may be anywhere in the table */
        found.all = found.calls;
        for (size_t i = dynamic->relative; dynamic->others != NULL && i < dynamic->others_size;
             ++i) {
            found.all +=
                note(&found, name_of(dynamic, (uint32_t)ELF64_R_SYM(dynamic->others[i].r_info)));
        }
    }
    *of_users = found.of_users;
    /* An address that is taken is resolved at once, even where calls wait. */
    return !found.any                                  ? kRefersToNone
           : found.waiting && found.all == found.calls ? kBoundLazily
                                                       : kBoundAtLoad;
}

/* --- all modules ----------------------------------------------------------------------------- */

static void find_id(struct Module* module, const ElfW(Phdr) * segment, uintptr_t moved) {
    const uintptr_t begin = moved + segment->p_vaddr;
    uintptr_t note_at = begin;
    while (note_at + sizeof(ElfW(Nhdr)) + 12 <= begin + segment->p_memsz) {
        const ElfW(Nhdr)* const head = (const ElfW(Nhdr)*)note_at;
        const uintptr_t name = note_at + sizeof(*head);
        const uintptr_t value = name + ((head->n_namesz + 3u) & ~3u);
        if (head->n_type == kBuildId && head->n_namesz == 4 && *(const char*)name == 'G') {
            const uintptr_t from = value - (module->low & ~(uintptr_t)(kFirstPage - 1));
            if (head->n_descsz >= 8 && from <= kFirstPage - 8) {
                module->id_at = (uint16_t)from;
            }
            return;
        }
        note_at = value + ((head->n_descsz + 3u) & ~3u);
    }
}

static void read_range(struct Module* module, const struct dl_phdr_info* info) {
    module->name = info->dlpi_name;
    module->moved = info->dlpi_addr;
    module->low = ~(uintptr_t)0;
    module->high = 0;
    module->dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)* const segment = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD) {
            module->low = begin < module->low ? begin : module->low;
            const uintptr_t end = begin + segment->p_memsz;
            module->high = end > module->high ? end : module->high;
        } else if (segment->p_type == PT_DYNAMIC) {
            module->dynamic = (const void*)begin;
        }
    }
}

static int contains(const struct Module* module, const void* address) {
    return module->low <= (uintptr_t)address && (uintptr_t)address < module->high;
}

static void read_rest(struct Module* module, const struct dl_phdr_info* info) {
    struct Dynamic dynamic;
    module->binding = kRefersToNone;
    module->of_users = 0;
    module->id_at = 0;
    module->symbols_hash = NULL;
    if (read_dynamic(&dynamic, module->moved, module->dynamic)) {
        module->binding = binding_of(module, &dynamic, &module->of_users);
        module->symbols_hash = dynamic.hash;
    }
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        if (info->dlpi_phdr[i].p_type == PT_NOTE) {
            find_id(module, &info->dlpi_phdr[i], module->moved);
        }
    }
}

struct Wanted {
    const void* address;
    struct Module* module;
};

static int find(struct dl_phdr_info* info, size_t size, void* argument) {
    const struct Wanted* const wanted = argument;
    struct Module module;
    (void)size;
    read_range(&module, info);
    if (!contains(&module, wanted->address)) {
        return 0;
    }
    read_rest(&module, info);
    *wanted->module = module;
    return 1;
}

int module_of(const void* address, struct Module* module) {
    struct Wanted wanted = {address, module};
    return visit_all(find, &wanted);
}

struct Collected {
    const void** addresses;
    unsigned count, size;
};

static int collect(struct dl_phdr_info* info, size_t size, void* argument) {
    struct Collected* const collected = argument;
    struct Module module;
    (void)size;
    read_range(&module, info);
    read_rest(&module, info);
    if (module.of_users && module.binding == kBoundAtLoad && collected->count < collected->size) {
        collected->addresses[collected->count++] = (const void*)module.low;
    }
    return 0;
}

unsigned modules_bound(const void** addresses, unsigned size) {
    struct Collected collected = {addresses, 0, size};
    (void)visit_all(collect, &collected);
    return collected.count;
}

/* The loaded objects come in the order of their loading. */
struct Order {
    const void* one;
    const void* other;
};

static int find_first(struct dl_phdr_info* info, size_t size, void* argument) {
    const struct Order* const order = argument;
    struct Module module;
    (void)size;
    read_range(&module, info);
    return contains(&module, order->other) ? 2 : contains(&module, order->one);
}

int module_is_later(const void* address, const void* other) {
    struct Order order = {address, other};
    return visit_all(find_first, &order) == 2;
}

int module_is_global(const struct Module* module, void* program) {
    struct Dynamic dynamic;
    const uint32_t* const hash = module->symbols_hash;
    if (hash == NULL || !read_dynamic(&dynamic, module->moved, module->dynamic)) {
        return 0;
    }
    const uint32_t filter = hash[2] * (sizeof(ElfW(Addr)) / sizeof(*hash));
    const uint32_t* const chains = hash + 4 + filter;
    uint32_t last = 0;
    for (uint32_t i = 0; i < hash[0]; ++i) {
        last = chains[i] > last ? chains[i] : last;
    }
    /* Several: another module may have a symbol of the same name. */
    for (uint32_t i = hash[1]; i <= last && i != 0 && i < hash[1] + kLooks; ++i) {
        if (contains(module, dlsym(program, name_of(&dynamic, i)))) {
            return 1;
        }
    }
    return 0;
}

/* --- prints ---------------------------------------------------------------------------------- */

/* struct dl_find_object of glibc 2.35, with room to spare. */
struct Place {
    unsigned long long flags;
    void* start;
    void* rest[30];
};
typedef int (*FindObject)(const void*, struct Place*);
static _Atomic(FindObject) g_find_object;

static uint64_t word_at(uintptr_t start, unsigned offset) {
    return *(const volatile uint64_t*)(start + offset);
}

void print_take(struct Print* print, const struct Module* module) {
    const FindObject find_object = (FindObject)dlsym(RTLD_DEFAULT, "_dl_find_object");
    struct Place place;
    print->start = 0;
    if (module->name == NULL || module->name[0] == '\0') {
        return; /* the program stays */
    }
    if (find_object == NULL || find_object((const void*)module->low, &place) != 0) {
        return;
    }
    atomic_store(&g_find_object, find_object);
    print->start = (uintptr_t)place.start;
    print->entry = word_at(print->start, kEntryAt);
    print->sections = word_at(print->start, kSectionsAt);
    print->id_at = module->id_at;
    print->id = module->id_at != 0 ? word_at(print->start, module->id_at) : 0;
}

int print_fits(const struct Print* print, const void* address) {
    struct Place place;
    if (print->start == 0) {
        return 1;
    }
    /* What is read lies in the first page of the object that is found, wherever it is. */
    return atomic_load_explicit(&g_find_object, memory_order_relaxed)(address, &place) == 0 &&
           (uintptr_t)place.start == print->start &&
           word_at(print->start, kEntryAt) == print->entry &&
           word_at(print->start, kSectionsAt) == print->sections &&
           (print->id_at == 0 || word_at(print->start, print->id_at) == print->id);
}
