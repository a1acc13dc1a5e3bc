// SPDX-License-Identifier: Apache-2.0
// Meeting at several roots: who meets where, and the ring that joins the groups.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softdev/nccl/bootstrap.h"
#include "softdev/nccl/error.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

struct RingHello {
    uint64_t magic;
    int32_t rank;
    int32_t nranks;
};

Error neighbour_missing(int rank, const char* what, int neighbour, const Patience& patience) {
    return Error(
        patience.cancelled() ? ncclInternalError : ncclRemoteError,
        format("rank %d: %s rank %d while the ranks of several unique ids were joining: %s", rank,
               what, neighbour, strerror(errno)));
}

}  // namespace

RootGroup root_group(int nranks, int ids, int index) {
    const int each = nranks / ids;
    const int longer = nranks % ids;
    return {index * each + std::min(index, longer), each + (index < longer ? 1 : 0)};
}

int root_of_rank(int nranks, int ids, int rank) {
    int index = 0;
    while (rank >= root_group(nranks, ids, index).first + root_group(nranks, ids, index).count) {
        ++index;
    }
    return index;
}

std::vector<Address> gather_on_ring(int nranks, int rank, uint64_t magic, int listener,
                                    const Address& next, const Address& own,
                                    const Patience& patience) {
    const int after = (rank + 1) % nranks;
    const int before = (rank + nranks - 1) % nranks;
    const RingHello hello{magic, rank, nranks};
    UniqueFd to = connect_to(next, patience, 2s);
    if (!to || !send_all(to.get(), &hello, sizeof hello, patience)) {
        throw neighbour_missing(rank, "cannot reach", after, patience);
    }
    UniqueFd from;
    while (!from) {
        UniqueFd fd = accept_on(listener, patience);
        if (!fd) {
            throw neighbour_missing(rank, "nothing comes from", before, patience);
        }
        RingHello other{};
        if (receive_all(fd.get(), &other, sizeof other, {Clock::now() + 5s, patience.cancel}) &&
            other.magic == magic && other.rank == before && other.nranks == nranks) {
            from = std::move(fd);
        }
    }
    std::vector<Address> all(static_cast<size_t>(nranks));
    all[static_cast<size_t>(rank)] = own;
    for (int round = 0; round < nranks - 1; ++round) {
        const auto give = static_cast<size_t>((rank - round + nranks) % nranks);
        const auto take = static_cast<size_t>((before - round + nranks) % nranks);
        if (!send_all(to.get(), &all[give], sizeof(Address), patience)) {
            throw neighbour_missing(rank, "cannot send to", after, patience);
        }
        if (!receive_all(from.get(), &all[take], sizeof(Address), patience)) {
            throw neighbour_missing(rank, "nothing comes from", before, patience);
        }
    }
    return all;
}

}  // namespace softdev::nccl
