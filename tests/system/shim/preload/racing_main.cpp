// SPDX-License-Identifier: Apache-2.0
// Threads that make the process's first NCCL call at the same moment. Prints how many of them were
// answered by which NCCL.
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <thread>
#include <vector>

int main() {
    constexpr int kThreads = 16;
    std::atomic<int> ready{0};
    std::vector<int> versions(kThreads, -1);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            ready.fetch_add(1);
            while (ready.load() < kThreads) {
            }
            if (ncclGetVersion(&versions[i]) != ncclSuccess) {
                versions[i] = -2;
            }
        });
    }
    std::map<int, int> answers;
    for (int i = 0; i < kThreads; ++i) {
        threads[i].join();
        ++answers[versions[i]];
    }
    for (const auto& [version, count] : answers) {
        std::printf("version=%d threads=%d\n", version, count);
    }
    return 0;
}
