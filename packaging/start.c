/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a program that is built here and starts where glibc is as old as 2.28.

   glibc 2.34 gave __libc_start_main a new version, which programs built since then ask for: from
   then on it runs the program's constructors itself. The start-up code's call ends here, and goes
   to the old version, which every glibc has and which wants a function that runs them. */
#include <features.h>
#include <stddef.h>

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)

#if defined(__x86_64__)
#define FIRST "2.2.5"
#else
#define FIRST "2.17"
#endif

typedef int main_function(int, char**, char**);
typedef void constructor(int, char**, char**);

extern int old_start(main_function* function, int count, char** words, constructor* begin,
                     void (*end)(void), void (*loader_end)(void), void* stack);
__asm__(".symver old_start, __libc_start_main@GLIBC_" FIRST);
int own_start(main_function* function, int count, char** words, constructor* begin,
              void (*end)(void), void (*loader_end)(void),
              void* stack) __asm__("__libc_start_main");

/* The linker's; destructors are the loader's work at all times. */
extern constructor* const first[] __asm__("__init_array_start")
    __attribute__((visibility("hidden")));
extern constructor* const behind_last[] __asm__("__init_array_end")
    __attribute__((visibility("hidden")));

static void run_constructors(int count, char** words, char** environment) {
    const size_t number = (size_t)(behind_last - first);
    for (size_t i = 0; i < number; ++i) {
        first[i](count, words, environment);
    }
}

int own_start(main_function* function, int count, char** words, constructor* begin,
              void (*end)(void), void (*loader_end)(void), void* stack) {
    (void)begin; /* both are NULL from glibc 2.34 on */
    (void)end;
    return old_start(function, count, words, run_constructors, NULL, loader_end, stack);
}

#endif
