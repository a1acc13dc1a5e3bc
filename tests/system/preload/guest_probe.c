/* SPDX-License-Identifier: Apache-2.0 */
/* A host for the preload that knows nothing of NCCL: does one thing a process can do and says what it sees of itself.
   Everything it prints must be the same with and without the preload. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static int compare(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b);
}

static void print_entries(const char* folder) {
    DIR* directory = opendir(folder);
    int count = 0;
    for (struct dirent* entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        count += entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory);
    }
    printf("%s: %d entries\n", folder, count);
    if (directory != NULL) {
        closedir(directory);
    }
}

/* Threads, descriptors, environment (but for LD_PRELOAD), signal dispositions, exit handlers by their effect. */
static int state(void) {
    const size_t heap = mallinfo2().uordblks;
    char line[256];
    print_entries("/proc/self/task");
    print_entries("/proc/self/fd");
    size_t count = 0;
    while (environ[count] != NULL) {
        ++count;
    }
    char** sorted = calloc(count + 1, sizeof(*sorted));
    memcpy(sorted, environ, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare);
    for (size_t i = 0; i < count; ++i) {
        if (strncmp(sorted[i], "LD_PRELOAD=", 11) != 0 && strncmp(sorted[i], "DEFT_", 5) != 0) {
            puts(sorted[i]);
        }
    }
    free(sorted);
    FILE* status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
        if (strncmp(line, "Sig", 3) == 0 || strncmp(line, "Shd", 3) == 0) {
            if (strncmp(line, "SigQ", 4) != 0) {
                fputs(line, stdout);
            }
        }
    }
    if (status != NULL) {
        fclose(status);
    }
    printf("errno %d\n", errno);
    const char* file = getenv("PROBE_HEAP"); /* not on stdout: the one figure that may differ */
    if (file != NULL) {
        FILE* out = fopen(file, "w");
        if (out != NULL) {
            fprintf(out, "%zu\n", heap);
            fclose(out);
        }
    }
    return 0;
}

static int wait_for(pid_t child) {
    int status = 0;
    if (child <= 0 || waitpid(child, &status, 0) != child) {
        perror("child");
        return 1;
    }
    printf("child ended with %d\n", status);
    return 0;
}

static void* thread_main(void* argument) {
    *(long*)argument *= 2;
    return argument;
}

static int threads(void) {
    pthread_t ids[8];
    long values[8];
    for (long i = 0; i < 8; ++i) {
        values[i] = i;
        if (pthread_create(&ids[i], NULL, thread_main, &values[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < 8; ++i) {
        pthread_join(ids[i], NULL);
        printf("%ld\n", values[i]);
    }
    return 0;
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    char* const echo[] = {"/bin/echo", "started", NULL};
    char* const again[] = {argv[0], "state", NULL};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(what, "state") == 0) {
        return state();
    }
    if (strcmp(what, "fork") == 0) {
        const pid_t child = fork();
        if (child == 0) {
            exit(state() + 7);
        }
        return wait_for(child);
    }
    if (strcmp(what, "vfork") == 0) {
        const pid_t child = vfork();
        if (child == 0) {
            execve(echo[0], echo, environ);
            _exit(99);
        }
        return wait_for(child);
    }
    if (strcmp(what, "exec") == 0) {
        execve("/proc/self/exe", again, environ);
        return 99;
    }
    if (strcmp(what, "spawn") == 0) {
        pid_t child = 0;
        return posix_spawn(&child, "/proc/self/exe", NULL, NULL, again, environ) || wait_for(child);
    }
    if (strcmp(what, "system") == 0) {
        return system("echo from the shell; exit 3") != 3 << 8;
    }
    if (strcmp(what, "threads") == 0) {
        return threads();
    }
    if (strcmp(what, "kill") == 0) {
        return raise(SIGTERM);
    }
    if (strcmp(what, "abort") == 0) {
        fputs("last words\n", stderr);
        abort();
    }
    fprintf(stderr, "guest_probe: what is '%s'?\n", what);
    return 2;
}
