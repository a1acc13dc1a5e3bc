// SPDX-License-Identifier: Apache-2.0
// Communicators made in every way, two ranks as threads of one process, each with a device of its
// own: sums are checked, in captured streams too. Prints one line per way.
//
// usage: makers_main [children|simulated|refused|shrunk|dropped|late|gone WHEN]
//   children: only those that one thread splits off in a group; simulated: of parents made in a
//   group that is simulated
//   refused: only ncclCommInitAll, of which nothing may be left when it fails
//   shrunk: some of four ranks shrink their communicator, thrice, and all go on to split it
//   dropped: as many again and again; prints the bytes that the last hundred have left
//   late: children of nonblocking communicators, kept until DEFT_LOG_FILE tells of eight agreements
//   gone: the memory that such a child's handle was stored to is gone: before the job hears that
//   the parent is done (early), after it (told), after the child's first call (used)
#include <cuda.h>
#include <malloc.h>
#include <nccl.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/system/shim/must.h"

namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 50'000;

using deft::test::check;

// One rank's device, stream and buffer.
struct Rank {
    explicit Rank(int number) : rank(number) {
        CUcontext context = nullptr;
        MUST(cuInit(0));
        MUST(cuDevicePrimaryCtxRetain(&context, rank));
        MUST(cuCtxSetCurrent(context));
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuMemAlloc(&memory, kCount * sizeof(int)));
    }
    ~Rank() {
        cuMemFree(memory);
        cuStreamDestroy(stream);
    }
    Rank(const Rank&) = delete;

    int reduce(ncclComm_t comm) const {
        return ncclAllReduce(data(), data(), kCount, ncclInt32, ncclSum, comm, stream);
    }
    int* data() const { return reinterpret_cast<int*>(memory); }
    void fill(int value) const {
        MUST(cuMemsetD32Async(memory, static_cast<unsigned>(value), kCount, stream));
        MUST(cuStreamSynchronize(stream));
    }
    void expect(int value) const {
        std::vector<int> host(kCount);
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemcpyDtoH(host.data(), memory, kCount * sizeof(int)));
        for (const int one : host) {
            check(one != value, "the sum");
        }
    }

    int rank;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
};

// A call of a nonblocking communicator, which may be over at once.
void begun(int result, const char* what) {
    check(result == ncclInProgress ? 0 : result, what);
}

// Until a nonblocking communicator is ready; the test's own limit ends a job that never is.
void wait_ready(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        MUST(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(state, "a nonblocking call");
}

void sum_over(const Rank& self, ncclComm_t comm, int ranks) {
    self.fill(1);
    for (int i = 0; i < 3; ++i) {
        MUST(self.reduce(comm));
    }
    self.expect(ranks * ranks * ranks);
}

void in_threads(const char* way, const std::function<void(const Rank&)>& body, int ranks = kRanks) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] { body(Rank(rank)); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    std::printf("%s\n", way);
}

ncclUniqueId new_id() {
    ncclUniqueId id;
    MUST(ncclGetUniqueId(&id));
    return id;
}

void captured(const Rank& self, ncclComm_t comm) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    self.fill(1);
    MUST(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(self.reduce(comm));
    MUST(cuStreamEndCapture(self.stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    self.expect(1);  // not at the capture
    for (int launch = 0; launch < 4; ++launch) {
        MUST(cuGraphLaunch(exec, self.stream));
    }
    self.expect(16);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

void init_all() {
    ncclComm_t comms[kRanks] = {};
    MUST(ncclCommInitAll(comms, kRanks, nullptr));
    in_threads("InitAll", [&](const Rank& self) {
        sum_over(self, comms[self.rank], kRanks);
        captured(self, comms[self.rank]);
        ncclComm_t both = nullptr;
        MUST(ncclCommSplit(comms[self.rank], 0, -self.rank, &both, nullptr));
        sum_over(self, both, kRanks);
        ncclComm_t one = nullptr;
        MUST(ncclCommSplit(both, self.rank == 0 ? 3 : NCCL_SPLIT_NOCOLOR, 0, &one, nullptr));
        check((one == nullptr) != (self.rank != 0), "who is in the split");
        if (one != nullptr) {
            sum_over(self, one, 1);
            MUST(ncclCommDestroy(one));
        }
        MUST(ncclCommFinalize(both));
        MUST(ncclCommDestroy(both));
        if (self.rank == 0) {
            int without[] = {1};
            ncclComm_t alone = nullptr;
            MUST(ncclCommShrink(comms[0], without, 1, &alone, nullptr, NCCL_SHRINK_DEFAULT));
            sum_over(self, alone, 1);
            MUST(ncclCommDestroy(alone));
        }
        MUST(ncclCommDestroy(comms[self.rank]));
    });
}

void scalable() {
    ncclUniqueId ids[] = {new_id(), new_id()};
    in_threads("Scalable", [&](const Rank& self) {
        ncclComm_t comm = nullptr;
        MUST(ncclCommInitRankScalable(&comm, kRanks, self.rank, 2, ids, nullptr));
        sum_over(self, comm, kRanks);
        MUST(ncclCommDestroy(comm));
    });
}

ncclComm_t new_nonblocking(const ncclUniqueId& id, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    check(ncclCommInitRankConfig(&comm, kRanks, id, rank, &config) != ncclInProgress,
          "ncclInProgress of the initialisation");
    wait_ready(comm);
    return comm;
}

void nonblocking() {
    const ncclUniqueId id = new_id();
    in_threads("Nonblocking", [&](const Rank& self) {
        ncclComm_t comm = new_nonblocking(id, self.rank);
        self.fill(1);
        for (int i = 0; i < 3; ++i) {
            begun(self.reduce(comm), "a call");
            wait_ready(comm);
        }
        self.expect(kRanks * kRanks * kRanks);
        constexpr int kOne = 0x3f800000;  // 1.0 as a gradient, and 2.0
        constexpr int kTwo = 0x40000000;
        self.fill(kOne);
        MUST(ncclGroupStart());
        MUST(
            ncclAllReduce(self.data(), self.data(), kCount, ncclFloat, ncclSum, comm, self.stream));
        begun(ncclGroupEnd(), "a group");
        wait_ready(comm);
        self.expect(kTwo);
        begun(ncclCommFinalize(comm), "the end");
        wait_ready(comm);
        MUST(ncclCommDestroy(comm));
    });
}

void use(int device) {
    CUcontext context = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
}

// Both ranks' calls from one thread, joined by groups.
void grouped(bool children, bool simulated = false) {
    const ncclUniqueId id = new_id();
    ncclComm_t parents[kRanks] = {};
    ncclComm_t comms[kRanks] = {};
    const Rank one(1), zero(0);
    const Rank* ranks[] = {&zero, &one};
    MUST(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) {
        use(rank);
        MUST(ncclCommInitRank(&comms[rank], kRanks, id, rank));
    }
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    MUST(simulated ? ncclGroupSimulateEnd(&info) : ncclGroupEnd());
    if (children) {
        std::swap(parents, comms);
        MUST(ncclGroupStart());
        for (int rank = 0; rank < kRanks; ++rank) {
            use(rank);
            MUST(ncclCommSplit(parents[rank], 0, rank, &comms[rank], nullptr));
        }
        MUST(ncclGroupEnd());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        use(rank);
        ranks[rank]->fill(1);
    }
    for (int i = 0; i < 3; ++i) {
        MUST(ncclGroupStart());
        for (int rank = 0; rank < kRanks; ++rank) {
            use(rank);
            MUST(ranks[rank]->reduce(comms[rank]));
        }
        MUST(ncclGroupEnd());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        use(rank);
        ranks[rank]->expect(kRanks * kRanks * kRanks);
        MUST(ncclCommDestroy(comms[rank]));
        if (children) {
            MUST(ncclCommDestroy(parents[rank]));
        }
    }
    std::printf(children ? "Children\n" : "Grouped\n");
}

// The ranks that are left out live, and know nothing of it.
void shrunk() {
    constexpr int kFour = 4;
    const ncclUniqueId id = new_id();
    std::barrier<> summed(kFour);
    const auto body = [&](const Rank& self) {
        ncclComm_t parent = nullptr;
        MUST(ncclCommInitRank(&parent, kFour, id, self.rank));
        const auto shrink = [&](std::vector<int> without) {
            ncclComm_t fewer = nullptr;
            MUST(ncclCommShrink(parent, without.data(), static_cast<int>(without.size()), &fewer,
                                nullptr, NCCL_SHRINK_DEFAULT));
            return fewer;
        };
        std::vector<ncclComm_t> made;
        for (int i = 0; self.rank != 3 && i < 2; ++i) {
            made.push_back(shrink({3}));
        }
        if (self.rank < 2) {
            made.push_back(
                shrink(self.rank == 0 ? std::vector<int>{2, 3} : std::vector<int>{3, 2}));
        }
        ncclComm_t all = nullptr;
        MUST(ncclCommSplit(parent, 0, self.rank, &all, nullptr));
        made.push_back(all);
        for (ncclComm_t comm : made) {
            int ranks = 0;
            MUST(ncclCommCount(comm, &ranks));
            sum_over(self, comm, ranks);
        }
        // The last rank to destroy one frees the memory of all on their devices. That waits for
        // their kernels, which must not wait for this rank.
        summed.arrive_and_wait();
        made.push_back(parent);
        for (ncclComm_t comm : made) {
            MUST(ncclCommDestroy(comm));
        }
    };
    in_threads("Shrunk", body, kFour);
}

// Until the log has said so often that ranks agree. The test's expectations find what is missing.
void wait_agreed(int times) {
    for (int waited = 0; waited < 6000; ++waited) {
        std::ifstream log(std::getenv("DEFT_LOG_FILE"));
        int found = 0;
        for (std::string line; std::getline(log, line);) {
            found += line.find("ranks of the communicator agree") != line.npos ? 1 : 0;
        }
        if (found >= times) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

void late() {
    const ncclUniqueId id = new_id();
    const auto use_once = [](const Rank& self, ncclComm_t comm) {
        self.fill(1);
        begun(self.reduce(comm), "a call");
        wait_ready(comm);
        self.expect(kRanks);
    };
    in_threads("Late", [&](const Rank& self) {
        ncclComm_t parent = new_nonblocking(id, self.rank);
        ncclComm_t hasty = nullptr;  // used when it is there, without asking whether it may be
        MUST(ncclCommSplit(parent, 0, self.rank, &hasty, nullptr));
        while (__atomic_load_n(&hasty, __ATOMIC_ACQUIRE) == nullptr) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        use_once(self, hasty);
        wait_ready(parent);
        ncclComm_t alone = nullptr;
        MUST(ncclCommSplit(parent, 0, self.rank, &alone, nullptr));
        wait_ready(parent);
        check(alone == nullptr, "the child's handle");
        ncclComm_t grouped = nullptr;
        MUST(ncclGroupStart());
        MUST(ncclCommSplit(parent, 0, self.rank, &grouped, nullptr));
        begun(ncclGroupEnd(), "a group");
        wait_ready(parent);
        check(grouped == nullptr, "the grouped child's handle");
        for (ncclComm_t child : {alone, grouped, hasty}) {
            use_once(self, child);
        }
        int other[] = {1 - self.rank};
        ncclComm_t fewer = nullptr;
        MUST(ncclCommShrink(parent, other, 1, &fewer, nullptr, NCCL_SHRINK_DEFAULT));
        wait_ready(parent);
        check(fewer == nullptr, "the shrunk child's handle");
        check(ncclCommAbort(fewer), "ncclCommAbort");
        wait_agreed(4 * kRanks);
        for (ncclComm_t comm : {alone, grouped, hasty, parent}) {
            MUST(ncclCommDestroy(comm));
        }
    });
}

// A page of its own, as the memory that the job gives back to the system.
class Page {
public:
    Page() {
        memory_ =
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory_ == MAP_FAILED, "mmap");
    }
    ~Page() { ::munmap(memory_, kBytes); }
    Page(const Page&) = delete;
    ncclComm_t* handle() const { return static_cast<ncclComm_t*>(memory_); }
    // From here on it is an error to touch it.
    void close() const { check(::mprotect(memory_, kBytes, PROT_NONE), "mprotect"); }

private:
    static constexpr size_t kBytes = 4096;
    void* memory_ = nullptr;
};

// As PyTorch, which keeps the handle in an object: the job looks at it until it is there.
void gone(const std::string& when) {
    const ncclUniqueId id = new_id();
    in_threads("Gone", [&](const Rank& self) {
        ncclComm_t parent = new_nonblocking(id, self.rank);
        const Page page;
        *page.handle() = nullptr;
        MUST(ncclCommSplit(parent, 0, self.rank, page.handle(), nullptr));
        while (__atomic_load_n(page.handle(), __ATOMIC_ACQUIRE) == nullptr) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const ncclComm_t child = *page.handle();
        if (when == "early") {
            page.close();
            wait_ready(parent);
        } else if (when == "told") {
            wait_ready(parent);
            page.close();
        } else {
            wait_ready(child);
            page.close();
            wait_ready(parent);
        }
        constexpr int kOne = 0x3f800000;  // 1.0
        self.fill(kOne);
        for (int i = 0; i < 8; ++i) {
            begun(ncclAllReduce(self.data(), self.data(), kCount, ncclFloat, ncclSum, child,
                                self.stream),
                  "a call");
            wait_ready(child);
        }
        self.expect(kOne + (8 << 23));  // 2.0 to the eighth
        ncclComm_t another = nullptr;
        MUST(ncclCommSplit(parent, 0, self.rank, &another, nullptr));
        wait_ready(parent);
        begun(ncclCommFinalize(child), "the end");
        wait_ready(child);
        MUST(ncclCommDestroy(child));
        MUST(ncclCommDestroy(another));
        MUST(ncclCommDestroy(parent));
    });
}

// Made for a barrier, say. What NCCL itself keeps counts too.
void dropped() {
    constexpr int kMade = 100;
    long held[3] = {};  // after as many each
    std::barrier<> together(kRanks);
    ncclUniqueId id{};
    in_threads("Dropped", [&](const Rank& self) {
        for (long& bytes : held) {
            for (int i = 0; i < kMade; ++i) {
                if (self.rank == 0) {
                    id = new_id();
                }
                together.arrive_and_wait();
                ncclComm_t comm = nullptr;
                MUST(ncclCommInitRank(&comm, kRanks, id, self.rank));
                MUST(i % 2 == 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm));
                together.arrive_and_wait();
            }
            if (self.rank == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(600));  // the shim's threads
                bytes = static_cast<long>(::mallinfo2().uordblks);
            }
            together.arrive_and_wait();
        }
    });
    std::printf("%ld\n", held[2] - held[1]);
}

void refused() {
    int stale = 0;
    ncclComm_t comms[kRanks];
    std::fill_n(comms, kRanks, reinterpret_cast<ncclComm_t>(&stale));
    const int result = ncclCommInitAll(comms, kRanks, nullptr);
    std::printf("InitAll: %d, %d handles\n", result,
                static_cast<int>(kRanks - std::count(comms, comms + kRanks, nullptr)));
}

}  // namespace

int main(int argc, char** argv) {
    const std::string way = argc > 1 ? argv[1] : "";
    if (way == "children" || way == "simulated") {
        grouped(true, way == "simulated");
        return 0;
    }
    if (way == "late") {
        late();
        return 0;
    }
    if (way == "gone" && argc > 2) {
        gone(argv[2]);
        return 0;
    }
    if (way == "shrunk") {
        shrunk();
        return 0;
    }
    if (way == "dropped") {
        dropped();
        return 0;
    }
    if (way == "refused") {
        refused();
        return 0;
    }
    init_all();
    scalable();
    nonblocking();
    grouped(false);
    return 0;
}
