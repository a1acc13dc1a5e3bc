// SPDX-License-Identifier: Apache-2.0
// Every collective with every element type and operation.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/component/softdev/nccl/values.h"
#include "tests/system/realnccl/job.h"

namespace deft::test {
namespace {

namespace values = softdev::test;

constexpr double kFactor = 2;  // of the operations that a job makes

enum class Op { sum, product, greatest, least, average, doubled, doubled_by_device };
constexpr Op kOps[] = {Op::sum,     Op::product, Op::greatest,         Op::least,
                       Op::average, Op::doubled, Op::doubled_by_device};

bool has_sign(ncclDataType_t type) {
    return type != ncclUint8 && type != ncclUint32 && type != ncclUint64;
}

// Numbers whose sums over eight ranks the type holds exactly, where it can.
int range(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
        case ncclBfloat16:
            return 7;
        case ncclFloat8e4m3:
        case ncclFloat8e5m2:
            return 3;
        default:
            return 50;
    }
}

double number(ncclDataType_t type, Op op, int rank, std::size_t i) {
    const auto mixed = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 5) % 1009);
    if (op == Op::product) {
        const double size = mixed % 11 < 2 ? 2 : 1;
        return has_sign(type) && mixed % 3 == 0 ? -size : size;
    }
    const int most = range(type);
    return has_sign(type) ? mixed % (2 * most + 1) - most : mixed % (most + 1);
}

struct Wanted {
    double value = 0;
    double sizes = 0;  ///< sum of the absolute values
};

Wanted reduced(ncclDataType_t type, Op op, int ranks, std::size_t i) {
    Wanted wanted{number(type, op, 0, i), std::abs(number(type, op, 0, i))};
    for (int rank = 1; rank < ranks; ++rank) {
        const double next = number(type, op, rank, i);
        wanted.sizes += std::abs(next);
        switch (op) {
            case Op::product:
                wanted.value *= next;
                break;
            case Op::greatest:
                wanted.value = std::max(wanted.value, next);
                break;
            case Op::least:
                wanted.value = std::min(wanted.value, next);
                break;
            case Op::sum:
            case Op::average:
            case Op::doubled:
            case Op::doubled_by_device:
                wanted.value += next;
        }
    }
    if (op == Op::doubled || op == Op::doubled_by_device) {
        wanted.value *= kFactor;
        wanted.sizes *= kFactor;
    } else if (op == Op::average) {
        wanted.value /= ranks;
        wanted.sizes /= ranks;
        wanted.value = values::is_integer(type) ? std::trunc(wanted.value) : wanted.value;
    }
    return wanted;
}

// Each operation rounds. Only averages and 8-bit floats need that.
double tolerance(ncclDataType_t type, Op op, int ranks, const Wanted& wanted) {
    const bool inexact = op == Op::average || type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
    return inexact ? 2 * (ranks + 1) * values::unit_roundoff(type) * wanted.sizes : 0;
}

// An operation of NCCL's, or one that this job makes.
class Operation {
public:
    Operation(const Job& job, ncclDataType_t type, Op op) : job_(job) {
        switch (op) {
            case Op::sum:
                return;
            case Op::product:
                op_ = ncclProd;
                return;
            case Op::greatest:
                op_ = ncclMax;
                return;
            case Op::least:
                op_ = ncclMin;
                return;
            case Op::average:
                op_ = ncclAvg;
                return;
            case Op::doubled:
            case Op::doubled_by_device:
                make(type, op == Op::doubled_by_device);
        }
    }
    ~Operation() {
        if (made_) {
            check(ncclRedOpDestroy(op_, job_.comm), "ncclRedOpDestroy");
        }
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    ncclRedOp_t get() const { return op_; }

private:
    void make(ncclDataType_t type, bool on_device) {
        std::byte factor[8] = {};
        values::put(type, factor, kFactor);
        void* where = factor;
        if (on_device) {
            scalar_ = std::make_unique<Memory>(sizeof factor);
            scalar_->put(factor, job_.stream);
            job_.wait();
            where = scalar_->get();
        }
        check(ncclRedOpCreatePreMulSum(&op_, where, type,
                                       on_device ? ncclScalarDevice : ncclScalarHostImmediate,
                                       job_.comm),
              "ncclRedOpCreatePreMulSum");
        made_ = true;
    }

    const Job& job_;
    ncclRedOp_t op_ = ncclSum;
    bool made_ = false;
    std::unique_ptr<Memory> scalar_;
};

struct Buffers {
    Buffers(std::size_t in, std::size_t out)
        : host_in(in), host_out(out), in_memory(in), out_memory(out) {}
    std::vector<std::byte> host_in;
    std::vector<std::byte> host_out;
    Memory in_memory;
    Memory out_memory;
};

// ---- reductions ---------------------------------------------------------------------------------

class Reductions {
public:
    Reductions(Job& job, ncclDataType_t type, Op op, std::size_t n, Tally& tally)
        : job_(job), type_(type), op_(op), n_(n), tally_(tally), operation_(job, type, op) {}

    void all_reduce() {
        const auto b = buffers(n_);
        check(ncclAllReduce(b->in_memory.get(), b->out_memory.get(), n_, type_, operation_.get(),
                            job_.comm, job_.stream),
              "ncclAllReduce");
        compare(*b, 0);
    }
    void reduce_scatter() {
        const auto b = buffers(n_ * static_cast<std::size_t>(job_.ranks));
        check(ncclReduceScatter(b->in_memory.get(), b->out_memory.get(), n_, type_,
                                operation_.get(), job_.comm, job_.stream),
              "ncclReduceScatter");
        compare(*b, n_ * static_cast<std::size_t>(job_.rank));
    }
    void reduce() {
        const int root = static_cast<int>(n_) % job_.ranks;
        const auto b = buffers(n_);
        check(ncclReduce(b->in_memory.get(), b->out_memory.get(), n_, type_, operation_.get(), root,
                         job_.comm, job_.stream),
              "ncclReduce");
        if (job_.rank == root) {
            compare(*b, 0);
        } else {
            job_.wait();
        }
    }

private:
    std::unique_ptr<Buffers> buffers(std::size_t elements) const {
        const std::size_t bytes = values::size_of(type_);
        auto b = std::make_unique<Buffers>(elements * bytes, n_ * bytes);
        for (std::size_t i = 0; i < elements; ++i) {
            values::put(type_, b->host_in.data() + i * bytes, number(type_, op_, job_.rank, i));
        }
        b->in_memory.put(b->host_in.data(), job_.stream);
        return b;
    }
    void compare(Buffers& b, std::size_t first) {
        b.out_memory.take(b.host_out.data(), job_.stream);
        for (std::size_t i = 0; i < n_; ++i) {
            const double got = values::get(type_, b.host_out.data() + i * values::size_of(type_));
            const Wanted wanted = reduced(type_, op_, job_.ranks, first + i);
            tally_.add(std::abs(got - wanted.value) <= tolerance(type_, op_, job_.ranks, wanted));
        }
    }

    Job& job_;
    ncclDataType_t type_;
    Op op_;
    std::size_t n_;
    Tally& tally_;
    Operation operation_;
};

// ---- copies, in which no bit may change ---------------------------------------------------------

std::byte given(int rank, std::size_t at) {
    const std::size_t mixed = (at + static_cast<std::size_t>(rank) * 977) * 2654435761u;
    return static_cast<std::byte>(mixed >> 13);
}

class Copies {
public:
    Copies(Job& job, ncclDataType_t type, std::size_t n, Tally& tally)
        : job_(job), type_(type), n_(n), bytes_(n * values::size_of(type)), tally_(tally) {}

    void all_gather() {
        const auto b = buffers(1, ranks());
        check(ncclAllGather(b->in_memory.get(), b->out_memory.get(), n_, type_, job_.comm,
                            job_.stream),
              "ncclAllGather");
        compare(*b, [&](std::size_t part, std::size_t at) { return given(int(part), at); });
    }
    void broadcast(int root) {
        const auto b = buffers(1, 1);
        check(ncclBroadcast(b->in_memory.get(), b->out_memory.get(), n_, type_, root, job_.comm,
                            job_.stream),
              "ncclBroadcast");
        compare(*b, [&](std::size_t, std::size_t at) { return given(root, at); });
    }
    /// In one group: 2.29 and later do these as one collective.
    void broadcasts() {
        const auto b = buffers(1, ranks());
        check(ncclGroupStart(), "ncclGroupStart");
        for (int root = 0; root < job_.ranks; ++root) {
            check(ncclBroadcast(b->in_memory.get(), part(b->out_memory, root), n_, type_, root,
                                job_.comm, job_.stream),
                  "ncclBroadcast");
        }
        check(ncclGroupEnd(), "ncclGroupEnd");
        compare(*b, [&](std::size_t part, std::size_t at) { return given(int(part), at); });
    }
    /// Everybody to everybody.
    void messages() {
        const auto b = buffers(ranks(), ranks());
        check(ncclGroupStart(), "ncclGroupStart");
        for (int peer = 0; peer < job_.ranks; ++peer) {
            check(ncclSend(part(b->in_memory, peer), n_, type_, peer, job_.comm, job_.stream),
                  "ncclSend");
            check(ncclRecv(part(b->out_memory, peer), n_, type_, peer, job_.comm, job_.stream),
                  "ncclRecv");
        }
        check(ncclGroupEnd(), "ncclGroupEnd");
        const std::size_t mine = static_cast<std::size_t>(job_.rank) * bytes_;
        compare(*b, [&](std::size_t part, std::size_t at) { return given(int(part), mine + at); });
    }

private:
    std::size_t ranks() const { return static_cast<std::size_t>(job_.ranks); }
    void* part(const Memory& memory, int which) const {
        return static_cast<std::byte*>(memory.get()) + static_cast<std::size_t>(which) * bytes_;
    }
    std::unique_ptr<Buffers> buffers(std::size_t in_parts, std::size_t out_parts) const {
        auto b = std::make_unique<Buffers>(in_parts * bytes_, out_parts * bytes_);
        for (std::size_t at = 0; at < b->host_in.size(); ++at) {
            b->host_in[at] = given(job_.rank, at);
        }
        b->in_memory.put(b->host_in.data(), job_.stream);
        return b;
    }
    /// `wanted` says the byte at a place of a part.
    template <class Byte>
    void compare(Buffers& b, const Byte& wanted) {
        b.out_memory.take(b.host_out.data(), job_.stream);
        const std::size_t one = values::size_of(type_);
        for (std::size_t at = 0; at < b.host_out.size(); at += one) {
            bool right = true;
            for (std::size_t byte = at; byte < at + one; ++byte) {
                if (b.host_out[byte] != wanted(byte / bytes_, byte % bytes_)) {
                    right = false;
                }
            }
            tally_.add(right);
        }
    }

    Job& job_;
    ncclDataType_t type_;
    std::size_t n_;
    std::size_t bytes_;
    Tally& tally_;
};

void collectives(Job& job) {
    job.join();
    Tally tally;
    for (const ncclDataType_t type : values::all_types()) {
        for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{50'001}}) {
            for (const Op op : kOps) {
                Reductions reductions(job, type, op, n, tally);
                reductions.all_reduce();
                reductions.reduce_scatter();
                reductions.reduce();
            }
            Copies copies(job, type, n, tally);
            copies.all_gather();
            for (int root = 0; root < job.ranks; ++root) {
                copies.broadcast(root);
            }
            copies.broadcasts();
            copies.messages();
        }
    }
    job.leave();
    tally.say();
}

}  // namespace

Scenarios every_collective() {
    return {{"collectives", collectives}};
}

}  // namespace deft::test
