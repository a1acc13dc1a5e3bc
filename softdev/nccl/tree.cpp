// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "softdev/nccl/program.h"

namespace softdev::nccl {
namespace {

// Parent in the in-order binary tree over 0..n-1 with root 0: a rank whose lowest set bit is b
// hangs under the rank that has b cleared and the next bit set, or only b cleared where that does
// not exist.
int parent_of(int rank, int nranks) {
    if (rank == 0) {
        return -1;
    }
    const int low = rank & -rank;
    const int up = (rank ^ low) | (low << 1);
    return up < nranks ? up : rank ^ low;
}

}  // namespace

TreeNode tree_node(int rank, int nranks, int channel) {
    const bool mirrored = channel % 2 == 1;
    const auto place = [&](int r) { return mirrored ? nranks - 1 - r : r; };
    const int own = place(rank);
    TreeNode node{parent_of(own, nranks), {}};
    if (node.parent >= 0) {
        node.parent = place(node.parent);
    }
    for (int other = 1; other < nranks; ++other) {
        if (parent_of(other, nranks) == own) {
            node.children.push_back(place(other));
        }
    }
    return node;
}

void build_tree(Program& up, Program& down, bool root, Buffers buffers, size_t element, Part part) {
    const Connection& any = root ? *down.receive[0] : *up.send[0];
    const Chunking chunking{any.capacity(up.shape) / element, 1};
    const size_t end = part.offset + part.count;
    for (size_t at = part.offset; at < end; at += chunking.slice_capacity) {
        const size_t n = std::min(chunking.slice_capacity, end - at);
        const std::byte* source = buffers.send + at * element;
        std::byte* result = buffers.receive + at * element;
        constexpr uint8_t kOwn = Step::kSource | Step::kOriginal;
        if (root) {
            add_chunk(down, chunking,
                      kOwn | Step::kReceive | Step::kSend | Step::kResult | Step::kFinal, source,
                      result, n, element);
            continue;
        }
        add_chunk(up, chunking, kOwn | Step::kSend | (up.receive.empty() ? 0 : Step::kReceive),
                  source, nullptr, n, element);
        add_chunk(down, chunking,
                  Step::kReceive | Step::kResult | (down.send.empty() ? 0 : Step::kSend), nullptr,
                  result, n, element);
    }
}

}  // namespace softdev::nccl
