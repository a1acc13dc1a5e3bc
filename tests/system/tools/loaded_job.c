/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is a job in a library (root_job), where there is no Python to open it. */
#include <dlfcn.h>
#include <stdio.h>

typedef int main_function(int, char**);

int main(int argc, char** argv) {
    void* const job = dlopen("/job/libroot-job.so", RTLD_NOW);
    if (job == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 9;
    }
    main_function* const run = (main_function*)dlsym(job, "main");
    return run(argc, argv);
}
