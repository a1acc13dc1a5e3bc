// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/bootstrap.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kEnvMagic =
    0x0280028002800280ull;  // NCCL's magic for an id made from NCCL_COMM_ID

struct Hello {
    uint64_t magic;
    int32_t nranks;
    int32_t rank;
    int32_t version;
    int32_t ids;    // unique ids the ranks bring
    int32_t index;  // which of them this root is
    Address control;
};

struct Verdict {
    int32_t code;
    char text[252];
};

struct CheckedIn {
    UniqueFd fd;
    Hello hello{};
    bool here = false;
};

// The meeting of the ranks of one id: all of them, or with several ids a run of ranks and the one
// that follows (which has its own root, and is here so that the last of the run can be told of it).
class Root {
public:
    Root(UniqueFd listener, uint64_t magic)
        : listener_(std::move(listener)),
          magic_(magic),
          deadline_(Limits::from_environment().stall) {}

    void run() {
        auto until = Clock::time_point::max();
        while (present_ == 0 || present_ < static_cast<int>(ranks_.size())) {
            if (present_ > 0 && until == Clock::time_point::max()) {
                until = Clock::now() + deadline_;
            }
            if (Clock::now() >= until) {
                return fail(
                    ncclRemoteError,
                    format("%s did not call ncclCommInitRank within %.0f s", missing().c_str(),
                           std::chrono::duration<double>(deadline_).count()));
            }
            if (!step()) {
                return;
            }
        }
        const Verdict good{ncclSuccess, {}};
        std::vector<Address> addresses;
        for (const CheckedIn& entry : ranks_) {
            addresses.push_back(entry.hello.control);
        }
        const Patience patience{Clock::now() + 10s};
        // Several roots: each rank of this one's group gets the next rank's address.
        const bool all = group_.count == nranks_;
        for (int place = 0; place < group_.count; ++place) {
            const int fd = ranks_[static_cast<size_t>(place)].fd.get();
            send_all(fd, &good, sizeof good, patience);
            send_all(fd, all ? addresses.data() : &addresses[static_cast<size_t>(place) + 1],
                     (all ? addresses.size() : 1) * sizeof(Address), patience);
        }
    }

private:
    // False: the meeting is over.
    bool step() {
        std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
        std::vector<int> who{-1};
        for (size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (ranks_[rank].fd) {
                waiting.push_back({ranks_[rank].fd.get(), POLLIN, 0});
                who.push_back(static_cast<int>(rank));
            }
        }
        if (poll(waiting.data(), waiting.size(), present_ == 0 ? -1 : 100) <= 0) {
            return true;
        }
        for (size_t i = 1; i < waiting.size(); ++i) {
            if (waiting[i].revents != 0) {
                ranks_[who[i]].fd.reset();
                fail(ncclRemoteError,
                     format("rank %d went away while the others were joining", rank_at(who[i])));
                return false;
            }
        }
        return waiting[0].revents == 0 || receive();
    }

    bool receive() {
        UniqueFd fd = accept_on(listener_.get(), {Clock::now() + 1s});
        Hello hello{};
        // A stranger (port scan, stale rank of another job) is dropped and the meeting goes on.
        if (!fd || !receive_all(fd.get(), &hello, sizeof hello, {Clock::now() + 10s}) ||
            hello.magic != magic_) {
            return true;
        }
        if (ranks_.empty()) {
            if (hello.nranks < 1 || hello.nranks > 1 << 16 || hello.ids < 1 ||
                hello.ids > hello.nranks || hello.index < 0 || hello.index >= hello.ids) {
                return true;
            }
            nranks_ = hello.nranks;
            group_ = root_group(nranks_, hello.ids, hello.index);
            ranks_.resize(static_cast<size_t>(group_.count + (hello.ids > 1 ? 1 : 0)));
            version_ = hello.version;
            first_ = hello.rank;
        }
        const int place = (hello.rank - group_.first + nranks_) % nranks_;
        std::string wrong;
        ncclResult_t code = ncclInvalidUsage;
        if (hello.version != version_) {
            wrong =
                format("Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                       first_, version_, hello.rank, hello.version);
        } else if (hello.nranks != nranks_) {
            wrong = format("mismatch in rank count from rank %d: it says %d, rank %d said %d",
                           hello.rank, hello.nranks, first_, nranks_);
        } else if (hello.rank < 0 || hello.rank >= nranks_ ||
                   place >= static_cast<int>(ranks_.size())) {
            wrong = format("rank %d of %d came with other unique ids than rank %d", hello.rank,
                           nranks_, first_);
        } else if (ranks_[place].here) {
            wrong = format("rank %d of %d has already checked in", hello.rank, hello.nranks);
        }
        if (!wrong.empty()) {
            answer(fd.get(), code, wrong);
            fail(code, wrong);
            return false;
        }
        ranks_[place] = {std::move(fd), hello, true};
        if (place >= group_.count) {
            ranks_[place].fd.reset();  // waits for its own root
        }
        ++present_;
        return true;
    }

    int rank_at(size_t place) const { return (group_.first + static_cast<int>(place)) % nranks_; }

    std::string missing() const {
        std::string names;
        int count = 0;
        for (size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (!ranks_[rank].here) {
                names += (count++ == 0 ? "" : ", ") + std::to_string(rank_at(rank));
            }
        }
        return (count == 1 ? "rank " : "ranks ") + names;
    }

    void answer(int fd, ncclResult_t code, const std::string& text) {
        Verdict bad{code, {}};
        std::strncpy(bad.text, text.c_str(), sizeof bad.text - 1);
        send_all(fd, &bad, sizeof bad, {Clock::now() + 5s});
    }

    void fail(ncclResult_t code, const std::string& text) {
        for (const CheckedIn& entry : ranks_) {
            if (entry.fd) {
                answer(entry.fd.get(), code, text);
            }
        }
    }

    UniqueFd listener_;
    uint64_t magic_;
    const std::chrono::milliseconds deadline_;
    std::vector<CheckedIn> ranks_;
    RootGroup group_{0, 0};
    int nranks_ = 0;
    int present_ = 0;
    int version_ = 0;
    int first_ = -1;
};

void start_root(UniqueFd listener, uint64_t magic) {
    // Detached as in NCCL: an id that nobody uses keeps its thread until the process ends.
    auto root = std::make_shared<Root>(std::move(listener), magic);
    std::thread([root] { root->run(); }).detach();
}

void write_head(ncclUniqueId& id, uint64_t magic, const Address& address) {
    std::memset(&id, 0, sizeof id);
    std::memcpy(id.internal, &magic, sizeof magic);
    std::memcpy(id.internal + 8, &address, sizeof address);
}

UniqueFd reach(const IdHead& head, const Hello& hello, const Patience& patience) {
    const auto refused_for = head.magic == kEnvMagic ? Limits::from_environment().stall
                                                     : std::chrono::milliseconds(2000);
    UniqueFd fd = connect_to(head.root, patience, refused_for);
    if (!fd || !send_all(fd.get(), &hello, sizeof hello, patience)) {
        throw Error(patience.cancelled() ? ncclInternalError : ncclRemoteError,
                    format("rank %d: cannot reach the root of the communicator at %s: %s",
                           hello.rank, to_string(head.root).c_str(), strerror(errno)));
    }
    return fd;
}

}  // namespace

IdHead read_id(const ncclUniqueId& id) {
    IdHead head{};
    std::memcpy(&head.magic, id.internal, sizeof head.magic);
    std::memcpy(&head.root, id.internal + 8, sizeof head.root);
    return head;
}

bool id_from_environment() {
    return env_text("NCCL_COMM_ID").has_value();
}

ncclUniqueId make_unique_id() {
    ncclUniqueId id;
    Address address{};
    if (const auto text = env_text("NCCL_COMM_ID")) {
        log_info(kSubsysEnv, "NCCL_COMM_ID set by environment to %s", text->c_str());
        if (!parse_address(*text, address)) {
            throw Error(ncclInvalidArgument,
                        format("Invalid NCCL_COMM_ID %s, please use format: <ipv4>:<port> "
                               "or [<ipv6>]:<port> or <hostname>:<port>",
                               text->c_str()));
        }
        write_head(id, kEnvMagic, address);
        return id;
    }
    const Interface interface = bootstrap_interface();
    address = interface.address;
    address.v4.sin_port = 0;  // the same place in both families
    UniqueFd listener = listen_on(address);
    std::random_device random;
    const uint64_t magic = (static_cast<uint64_t>(random()) << 32) | random();
    write_head(id, magic, address);
    log_info(kSubsysInit | kSubsysBootstrap, "Bootstrap: Using %s:%s", interface.name.c_str(),
             to_string(interface.address).c_str());
    start_root(std::move(listener), magic);
    return id;
}

void start_root_for_rank0(const ncclUniqueId& id) {
    const IdHead head = read_id(id);
    if (head.magic == kEnvMagic) {
        Address address = head.root;
        start_root(listen_on(address), head.magic);
    }
}

std::vector<Address> check_in(const std::vector<ncclUniqueId>& ids, int nranks, int rank,
                              const Address& own, const Patience& patience) {
    const int count = static_cast<int>(ids.size());
    const int index = root_of_rank(nranks, count, rank);
    for (const ncclUniqueId& id : ids) {
        const auto family = read_id(id).root.any.sa_family;
        if (family != AF_INET && family != AF_INET6) {
            throw Error(ncclInvalidArgument,
                        "the unique id holds no address: was it made by ncclGetUniqueId?");
        }
    }
    Hello hello{};
    hello.nranks = nranks;
    hello.rank = rank;
    hello.version = nccl_version();
    hello.ids = count;
    hello.control = own;
    UniqueFd ring;
    if (count > 1) {
        hello.control.v4.sin_port = 0;
        ring = listen_on(hello.control);
    }
    const auto say = [&](int root) {
        const IdHead head = read_id(ids[static_cast<size_t>(root)]);
        hello.magic = head.magic;
        hello.index = root;
        return reach(head, hello, patience);
    };
    if (count > 1 && rank == root_group(nranks, count, index).first) {
        say((index + count - 1) % count);
    }
    UniqueFd fd = say(index);
    Verdict verdict{};
    std::vector<Address> addresses(count > 1 ? 1 : static_cast<size_t>(nranks));
    // The root answers within the deadline that starts with the first rank; a little longer is the
    // end.
    const Patience longer{patience.until + 5s, patience.cancel};
    bool heard = receive_all(fd.get(), &verdict, sizeof verdict, longer);
    if (heard && verdict.code == ncclSuccess) {
        heard = receive_all(fd.get(), addresses.data(), addresses.size() * sizeof(Address), longer);
    }
    if (!heard) {
        throw Error(patience.cancelled() ? ncclInternalError : ncclRemoteError,
                    format("rank %d of %d: the root of the communicator went away: %s", rank,
                           nranks, strerror(errno)));
    }
    if (verdict.code != ncclSuccess) {
        verdict.text[sizeof verdict.text - 1] = '\0';
        throw Error(static_cast<ncclResult_t>(verdict.code), verdict.text);
    }
    return count > 1 ? gather_on_ring(nranks, rank, read_id(ids[0]).magic, ring.get(), addresses[0],
                                      own, longer)
                     : addresses;
}

}  // namespace softdev::nccl
