/* SPDX-License-Identifier: Apache-2.0 */
/* A program of another C library, musl: does what a process can do, and with "call" makes an NCCL call. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern int ncclGetVersion(int* version) __attribute__((weak));

static void* thread_main(void* argument) {
    *(int*)argument += 1;
    return argument;
}

int main(int argc, char** argv) {
    pthread_t thread;
    int value = 41;
    int status = -1;
    if (argc > 1 && strcmp(argv[1], "call") == 0) {
        printf("result=%d\n", ncclGetVersion != NULL ? ncclGetVersion(&value) : -1);
        return 0;
    }
    if (pthread_create(&thread, NULL, thread_main, &value) != 0 || pthread_join(thread, NULL) != 0) {
        return 1;
    }
    const pid_t child = fork();
    if (child == 0) {
        _exit(7);
    }
    waitpid(child, &status, 0);
    char* const text = malloc(100000);
    snprintf(text, 100000, "value=%d child=%d errno=%d", value, WEXITSTATUS(status), errno);
    puts(text);
    free(text);
    return system("exit 3") == 3 << 8 ? 0 : 2;
}
