/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the C library that the product would otherwise ask for by a version above
   GLIBC_2.28, which is the floor of PyTorch's own wheels. A library that names a later version
   does not load where glibc is older, and a preload that does not load ends every program.

   Where the product is built, glibc gives the newest version to each name. Most of those are old
   functions that glibc 2.34 moved from libpthread and libdl into libc: they are asked for by their
   old versions here, which every glibc still has. The few new ones are written out below.

   The names end here because the version script hides them; nobody else's calls do. Asm labels
   carry them, so that no declaration of the host's headers is in the way.

   Where glibc is older than 2.34, libpthread and libdl may be missing from the process. The
   references are weak for that reason: a program that runs without them still starts, under
   LD_BIND_NOW too. Who calls NCCL has libdl (NCCL opens its plugins with it). libpthread may have
   come in by an RTLD_LOCAL dlopen; then it is fetched by name (late_address).

   Adding a function: tests/system/preload/elf_test.py names it and its version. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <features.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* An older build host gives old versions by itself. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)

#if defined(__x86_64__)
#define FIRST "2.2.5" /* glibc's first version on this machine */
#define SINCE(version) version
#else
#define FIRST "2.17"
#define SINCE(version) FIRST /* all that is used here is older than the port */
#endif

/* Two statements: `old_NAME` is that function by its old version, weak; `own_NAME`, called NAME by
   the rest of the product, is ours. */
#define OLD(result, name, version, parameters)                  \
    extern result old_##name parameters __attribute__((weak));  \
    __asm__(".symver old_" #name ", " #name "@GLIBC_" version); \
    result own_##name parameters __asm__(#name)

/* --- libdl ----------------------------------------------------------------------------------- */

OLD(void*, dlopen, FIRST, (const char* file, int flags));
OLD(void*, dlsym, FIRST, (void* handle, const char* name));
OLD(void*, dlvsym, FIRST, (void* handle, const char* name, const char* version));
OLD(int, dladdr, FIRST, (const void* address, Dl_info* info));
OLD(int, dladdr1, SINCE("2.3.3"), (const void* address, Dl_info* info, void** more, int what));
OLD(int, dlinfo, SINCE("2.3.3"), (void* handle, int request, void* answer));
OLD(int, dlclose, FIRST, (void* handle));
OLD(char*, dlerror, FIRST, (void));

/* Their caller, by which the loader knows the scope, is this library either way. */
void* own_dlopen(const char* file, int flags) {
    return old_dlsym != NULL ? old_dlopen(file, flags) : NULL;
}
void* own_dlsym(void* handle, const char* name) {
    return old_dlsym != NULL ? old_dlsym(handle, name) : NULL;
}
void* own_dlvsym(void* handle, const char* name, const char* version) {
    return old_dlsym != NULL ? old_dlvsym(handle, name, version) : NULL;
}
int own_dladdr(const void* address, Dl_info* info) {
    return old_dlsym != NULL ? old_dladdr(address, info) : 0;
}
int own_dladdr1(const void* address, Dl_info* info, void** more, int what) {
    return old_dlsym != NULL ? old_dladdr1(address, info, more, what) : 0;
}
int own_dlinfo(void* handle, int request, void* answer) {
    return old_dlsym != NULL ? old_dlinfo(handle, request, answer) : -1;
}
int own_dlclose(void* handle) {
    return old_dlsym != NULL ? old_dlclose(handle) : -1;
}
char* own_dlerror(void) {
    static char none[] = "this program has no libdl";
    return old_dlsym != NULL ? old_dlerror() : none;
}

/* --- libpthread ------------------------------------------------------------------------------ */

/* Once per function and process, and only where libpthread is not in the library's scope. */
static void* late_address(const char* name) {
    void* const library = own_dlopen("libpthread.so.0", RTLD_LAZY | RTLD_GLOBAL);
    return library != NULL ? own_dlsym(library, name) : NULL;
}

/* pthread_create stands for all of them: they are in one library. */
#define THREADS(result, name, version, parameters, arguments, otherwise) \
    OLD(result, name, version, parameters);                              \
    result own_##name parameters {                                       \
        static _Atomic(uintptr_t) late;                                  \
        if (old_pthread_create != NULL) {                                \
            return old_##name arguments;                                 \
        }                                                                \
        if (late == 0) {                                                 \
            late = (uintptr_t)late_address(#name);                       \
        }                                                                \
        result(*const function) parameters = (result(*) parameters)late; \
        return function != NULL ? function arguments : (otherwise);      \
    }

THREADS(int, pthread_create, FIRST,
        (pthread_t * id, const pthread_attr_t* attributes, void* (*start)(void*), void* argument),
        (id, attributes, start, argument), ENOSYS)
THREADS(int, pthread_join, FIRST, (pthread_t id, void** result), (id, result), ENOSYS)
THREADS(int, pthread_detach, FIRST, (pthread_t id), (id), ENOSYS)
THREADS(int, pthread_attr_setstacksize, FIRST, (pthread_attr_t * attributes, size_t size),
        (attributes, size), ENOSYS)
THREADS(int, pthread_condattr_setclock, SINCE("2.3.3"),
        (pthread_condattr_t * attributes, clockid_t clock), (attributes, clock), ENOSYS)
THREADS(int, pthread_setname_np, SINCE("2.12"), (pthread_t id, const char* name), (id, name),
        ENOSYS)
THREADS(int, pthread_once, FIRST, (pthread_once_t * once, void (*start)(void)), (once, start),
        ENOSYS)
THREADS(int, pthread_mutex_trylock, FIRST, (pthread_mutex_t * mutex), (mutex), ENOSYS)
THREADS(int, pthread_rwlock_rdlock, FIRST, (pthread_rwlock_t * lock), (lock), ENOSYS)
THREADS(int, pthread_rwlock_wrlock, FIRST, (pthread_rwlock_t * lock), (lock), ENOSYS)
THREADS(int, pthread_rwlock_unlock, FIRST, (pthread_rwlock_t * lock), (lock), ENOSYS)
THREADS(int, pthread_key_create, FIRST, (pthread_key_t * key, void (*end)(void*)), (key, end),
        ENOSYS)
THREADS(int, __pthread_key_create, FIRST, (pthread_key_t * key, void (*end)(void*)), (key, end),
        ENOSYS)
THREADS(int, pthread_key_delete, FIRST, (pthread_key_t key), (key), ENOSYS)
THREADS(void*, pthread_getspecific, FIRST, (pthread_key_t key), (key), NULL)
THREADS(int, pthread_setspecific, FIRST, (pthread_key_t key, const void* value), (key, value),
        ENOSYS)

/* In libc at all times, and the same: both concern the calling thread. */
int own_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) __asm__("pthread_sigmask");
int own_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
    return sigprocmask(how, set, before) == 0 ? 0 : errno;
}

/* --- libc ------------------------------------------------------------------------------------ */

/* Up to 2.32 these were inline functions of the headers. The kernel's struct is the C library's on
   64-bit machines. */
int own_fstat(int fd, struct stat* status) __asm__("fstat");
int own_fstat64(int fd, struct stat* status) __asm__("fstat64");
int own_stat(const char* path, struct stat* status) __asm__("stat");
int own_stat64(const char* path, struct stat* status) __asm__("stat64");
int own_lstat(const char* path, struct stat* status) __asm__("lstat");
int own_lstat64(const char* path, struct stat* status) __asm__("lstat64");

static int stat_at(int folder, const char* path, struct stat* status, int flags) {
    return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}
int own_fstat(int fd, struct stat* status) {
    return (int)syscall(SYS_fstat, fd, status);
}
int own_fstat64(int fd, struct stat* status) {
    return own_fstat(fd, status);
}
int own_stat(const char* path, struct stat* status) {
    return stat_at(AT_FDCWD, path, status, 0);
}
int own_stat64(const char* path, struct stat* status) {
    return own_stat(path, status);
}
int own_lstat(const char* path, struct stat* status) {
    return stat_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int own_lstat64(const char* path, struct stat* status) {
    return own_lstat(path, status);
}

/* libstdc++ may leave out atomic instructions while it is set. glibc clears it at the first
   pthread_create, which an older glibc would not: never set. */
char own_single_threaded __asm__("__libc_single_threaded") = 0;

/* For std::random_device. */
uint32_t own_arc4random(void) __asm__("arc4random");
uint32_t own_arc4random(void) {
    uint32_t value = 0;
    while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
        if (errno != EINTR) { /* a kernel without the call: as good as it gets */
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            return (uint32_t)now.tv_nsec * 2654435761u ^ (uint32_t)(uintptr_t)&now;
        }
    }
    return value;
}

/* Headers of glibc 2.38 and later send strtol and its like to these. They differ by "0b". */
#define STRTO(result, name)                                                 \
    extern result old_##name(const char*, char**, int) __asm__(#name);      \
    result own_##name(const char*, char**, int) __asm__("__isoc23_" #name); \
    result own_##name(const char* text, char** end, int base) {             \
        return old_##name(text, end, base);                                 \
    }
STRTO(long, strtol)
STRTO(long long, strtoll)
STRTO(unsigned long, strtoul)
STRTO(unsigned long long, strtoull)

/* --- exceptions ------------------------------------------------------------------------------ */

#if __GLIBC_PREREQ(2, 35)
/* libgcc's unwinder asks where the unwind table of the code at `pc` is. Nearly all of it is this
   library's, which is found without a lock; for other code the loader's list is walked, as
   unwinders did before glibc 2.35. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

struct search {
    uintptr_t pc;
    struct dl_find_object* found;
};

static int contains(ElfW(Addr) base, const ElfW(Phdr) * segments, size_t count,
                    struct search* search) {
    const ElfW(Phdr)* table = NULL;
    uintptr_t start = UINTPTR_MAX;
    uintptr_t end = 0;
    int inside = 0;
    for (size_t i = 0; i < count; ++i) {
        const uintptr_t at = base + segments[i].p_vaddr;
        if (segments[i].p_type == PT_GNU_EH_FRAME) {
            table = &segments[i];
        } else if (segments[i].p_type == PT_LOAD) {
            start = at < start ? at : start;
            end = at + segments[i].p_memsz > end ? at + segments[i].p_memsz : end;
            if (search->pc >= at && search->pc < at + segments[i].p_memsz) {
                inside = 1;
            }
        }
    }
    if (!inside || table == NULL) {
        return 0;
    }
    search->found->dlfo_map_start = (void*)start;
    search->found->dlfo_map_end = (void*)end;
    search->found->dlfo_link_map = NULL; /* the unwinder does not look at it */
    search->found->dlfo_eh_frame = (void*)(base + table->p_vaddr);
    return 1;
}

static int look_at(struct dl_phdr_info* object, size_t size, void* argument) {
    (void)size;
    return contains(object->dlpi_addr, object->dlpi_phdr, object->dlpi_phnum, argument);
}

int own_dl_find_object(void* pc, struct dl_find_object* found) __asm__("_dl_find_object");
int own_dl_find_object(void* pc, struct dl_find_object* found) {
    struct search search = {(uintptr_t)pc, found};
    const char* const self = (const char*)&__ehdr_start;
    if (contains((ElfW(Addr))self, (const ElfW(Phdr)*)(self + __ehdr_start.e_phoff),
                 __ehdr_start.e_phnum, &search)) {
        return 0;
    }
    return dl_iterate_phdr(look_at, &search) != 0 ? 0 : -1;
}
#endif

#else
typedef int deft_glibc_is_old_enough;
#endif
