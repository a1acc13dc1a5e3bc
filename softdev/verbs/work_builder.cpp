// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/work_builder.h"

#include <cerrno>
#include <utility>

#include "softdev/verbs/queue_pair.h"
#include "softdev/verbs/report.h"

namespace softdev::verbs {
namespace {

WorkBuilder& builder_of(ibv_qp_ex* qp) {
    return static_cast<Qp*>(qp)->builder;
}

WorkBuilder::Item& begin(ibv_qp_ex* qp, ibv_wr_opcode opcode) {
    WorkBuilder& builder = builder_of(qp);
    if (!builder.open) {
        report("ibv_wr_*: QP %u: ibv_wr_start was not called", qp->qp_base.qp_num);
    }
    WorkBuilder::Item& item = builder.items.emplace_back();
    item.wr.opcode = opcode;
    item.wr.wr_id = qp->wr_id;
    item.wr.send_flags = qp->wr_flags;
    return item;
}

template <ibv_wr_opcode opcode>
void rdma(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address) {
    auto& to = begin(qp, opcode).wr.wr.rdma;
    to.rkey = rkey;
    to.remote_addr = address;
}

void atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address,
            std::uint64_t compare_add, std::uint64_t swap) {
    begin(qp, opcode).wr.wr.atomic = {address, compare_add, swap, rkey};
}

// Sets what belongs to the request that was begun last.
WorkBuilder::Item* current(ibv_qp_ex* qp) {
    WorkBuilder& builder = builder_of(qp);
    if (builder.items.empty()) {
        report("ibv_wr_set_*: QP %u: no request was begun", qp->qp_base.qp_num);
        return nullptr;
    }
    return &builder.items.back();
}

void add_inline(ibv_qp_ex* qp, const void* at, std::size_t length) {
    if (WorkBuilder::Item* const item = current(qp)) {
        const char* const from = static_cast<const char*>(at);
        item->inlined.insert(item->inlined.end(), from, from + length);
        item->wr.send_flags |= IBV_SEND_INLINE;
    }
}

void set_sges(ibv_qp_ex* qp, std::size_t count, const ibv_sge* list) {
    if (WorkBuilder::Item* const item = current(qp)) {
        item->sges.assign(list, list + count);
    }
}

int complete(ibv_qp_ex* qp) {
    WorkBuilder& builder = builder_of(qp);
    auto items = std::exchange(builder.items, {});
    builder.open = false;
    ibv_send_wr* previous = nullptr;
    for (WorkBuilder::Item& item : items) {
        if (!item.inlined.empty()) {
            item.sges = {{reinterpret_cast<std::uint64_t>(item.inlined.data()),
                          static_cast<std::uint32_t>(item.inlined.size()), 0}};
        }
        item.wr.sg_list = item.sges.data();
        item.wr.num_sge = static_cast<int>(item.sges.size());
        if (previous != nullptr) {
            previous->next = &item.wr;
        }
        previous = &item.wr;
    }
    ibv_send_wr* bad = nullptr;
    return items.empty() ? 0 : ibv_post_send(&qp->qp_base, &items.front().wr, &bad);
}

void start(ibv_qp_ex* qp) {
    WorkBuilder& builder = builder_of(qp);
    if (builder.open) {
        report("ibv_wr_start: QP %u: the last one was not completed", qp->qp_base.qp_num);
    }
    builder.open = true;
    builder.items.clear();
}

}  // namespace

void WorkBuilder::install(ibv_qp_ex& qp) {
    qp.wr_start = start;
    qp.wr_complete = complete;
    qp.wr_abort = [](ibv_qp_ex* of) {
        builder_of(of).open = false;
        builder_of(of).items.clear();
    };
    qp.wr_send = [](ibv_qp_ex* of) { begin(of, IBV_WR_SEND); };
    qp.wr_send_imm = [](ibv_qp_ex* of, __be32 imm) {
        begin(of, IBV_WR_SEND_WITH_IMM).wr.imm_data = imm;
    };
    qp.wr_rdma_write = rdma<IBV_WR_RDMA_WRITE>;
    qp.wr_rdma_read = rdma<IBV_WR_RDMA_READ>;
    qp.wr_rdma_write_imm = [](ibv_qp_ex* of, std::uint32_t rkey, std::uint64_t address,
                              __be32 imm) {
        rdma<IBV_WR_RDMA_WRITE_WITH_IMM>(of, rkey, address);
        current(of)->wr.imm_data = imm;
    };
    qp.wr_atomic_cmp_swp = [](ibv_qp_ex* of, std::uint32_t rkey, std::uint64_t address,
                              std::uint64_t compare, std::uint64_t swap) {
        atomic(of, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
    };
    qp.wr_atomic_fetch_add = [](ibv_qp_ex* of, std::uint32_t rkey, std::uint64_t address,
                                std::uint64_t add) {
        atomic(of, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
    };
    qp.wr_set_sge = [](ibv_qp_ex* of, std::uint32_t lkey, std::uint64_t address,
                       std::uint32_t length) {
        const ibv_sge one{address, length, lkey};
        set_sges(of, 1, &one);
    };
    qp.wr_set_sge_list = set_sges;
    qp.wr_set_inline_data = [](ibv_qp_ex* of, void* at, std::size_t length) {
        add_inline(of, at, length);
    };
    qp.wr_set_inline_data_list = [](ibv_qp_ex* of, std::size_t count, const ibv_data_buf* list) {
        for (std::size_t i = 0; i < count; ++i) {
            add_inline(of, list[i].addr, list[i].length);
        }
    };
}

}  // namespace softdev::verbs
