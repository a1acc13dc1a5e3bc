// SPDX-License-Identifier: Apache-2.0
#include "tests/softdev/nccl/bootstrap.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "tests/softdev/nccl/env.h"
#include "tests/softdev/nccl/error.h"
#include "tests/softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kEnvMagic =
    0x0280028002800280ull;  // NCCL's magic for an id made from NCCL_COMM_ID
constexpr int kDismiss = -1;

struct Hello {
    uint64_t magic;
    int32_t nranks;  // kDismiss: no rank, the root is not needed
    int32_t rank;
    int32_t version;
    Address control;
};

struct Verdict {
    int32_t code;
    char text[252];
};

struct CheckedIn {
    UniqueFd fd;
    Hello hello;
};

// One meeting of all ranks of one id.
class Root {
public:
    Root(UniqueFd listener, uint64_t magic) : listener_(std::move(listener)), magic_(magic) {}

    void run() {
        auto until = Clock::time_point::max();
        while (present_ == 0 || present_ < static_cast<int>(ranks_.size())) {
            if (present_ > 0 && until == Clock::time_point::max()) {
                until = Clock::now() + stall_deadline();
            }
            if (Clock::now() >= until) {
                return fail(
                    ncclRemoteError,
                    format("%s did not call ncclCommInitRank within %.0f s", missing().c_str(),
                           std::chrono::duration<double>(stall_deadline()).count()));
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
        for (const CheckedIn& entry : ranks_) {
            send_all(entry.fd.get(), &good, sizeof good, patience);
            send_all(entry.fd.get(), addresses.data(), addresses.size() * sizeof(Address),
                     patience);
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
                     format("rank %d went away while the others were joining", who[i]));
                return false;
            }
        }
        return waiting[0].revents == 0 || receive();
    }

    bool receive() {
        UniqueFd fd = accept_on(listener_.get(), {Clock::now() + 1s});
        Hello hello{};
        // A stranger (port scan, stale rank of another job) is dropped and the meeting goes on.
        if (!fd || !receive_all(fd.get(), &hello, sizeof hello, {Clock::now() + 2s}) ||
            hello.magic != magic_) {
            return true;
        }
        if (hello.nranks == kDismiss) {
            return false;
        }
        if (ranks_.empty()) {
            if (hello.nranks < 1 || hello.nranks > 1 << 16) {
                return true;
            }
            ranks_.resize(static_cast<size_t>(hello.nranks));
            version_ = hello.version;
            first_ = hello.rank;
        }
        std::string wrong;
        ncclResult_t code = ncclInvalidUsage;
        if (hello.version != version_) {
            wrong =
                format("Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                       first_, version_, hello.rank, hello.version);
        } else if (hello.nranks != static_cast<int>(ranks_.size())) {
            wrong = format("mismatch in rank count from rank %d: it says %d, rank %d said %zu",
                           hello.rank, hello.nranks, first_, ranks_.size());
        } else if (hello.rank < 0 || hello.rank >= hello.nranks || ranks_[hello.rank].fd) {
            wrong = format("rank %d of %d has already checked in", hello.rank, hello.nranks);
        }
        if (!wrong.empty()) {
            answer(fd.get(), code, wrong);
            fail(code, wrong);
            return false;
        }
        ranks_[hello.rank] = {std::move(fd), hello};
        ++present_;
        return true;
    }

    std::string missing() const {
        std::string names;
        int count = 0;
        for (size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (!ranks_[rank].fd) {
                names += (count++ == 0 ? "" : ", ") + std::to_string(rank);
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
    std::vector<CheckedIn> ranks_;
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
    const auto refused_for =
        head.magic == kEnvMagic ? stall_deadline() : std::chrono::milliseconds(2000);
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

std::vector<Address> check_in(const ncclUniqueId& id, int nranks, int rank, const Address& own,
                              const Patience& patience) {
    const IdHead head = read_id(id);
    if (head.root.any.sa_family != AF_INET && head.root.any.sa_family != AF_INET6) {
        throw Error(ncclInvalidArgument,
                    "the unique id holds no address: was it made by ncclGetUniqueId?");
    }
    Hello hello{};
    hello.magic = head.magic;
    hello.nranks = nranks;
    hello.rank = rank;
    hello.version = nccl_version();
    hello.control = own;
    UniqueFd fd = reach(head, hello, patience);
    Verdict verdict{};
    std::vector<Address> addresses(static_cast<size_t>(nranks));
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
    return addresses;
}

void dismiss_root(const ncclUniqueId& id, const Patience& patience) {
    const IdHead head = read_id(id);
    Hello hello{};
    hello.magic = head.magic;
    hello.nranks = kDismiss;
    reach(head, hello, patience);
}

}  // namespace softdev::nccl
