// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl_kernels/layout.h"

#include <array>

namespace softdev::nccl_kernels {
namespace {

constexpr Layout kOf2_27 = {
    .oldest = 22700,
    .ring_index = 16,
    .tree = 32,
    .work_count = 352,
    .work_bytes = 96,
    .registered_work_bytes = 288,
    .output = 8,
    .input = 16,
    .shares = 56,
    .argument = 88,
    .reversed_parts = true,
};

constexpr Layout of_2_28() {
    Layout layout = kOf2_27;
    layout.oldest = 22800;
    layout.reversed_parts = false;
    return layout;
}

constexpr Layout of_2_29() {
    Layout layout = of_2_28();
    layout.oldest = 22900;
    layout.ring_index = 24;
    layout.tree = 40;
    layout.work_count = 360;
    layout.gathers_unequally = true;
    return layout;
}

constexpr Layout of_2_30() {
    Layout layout = of_2_29();
    layout.oldest = 23000;
    layout.work_bytes = 128;
    layout.registered_work_bytes = 320;
    layout.output = 24;
    layout.input = 32;
    layout.shares = 80;
    layout.argument = 112;
    return layout;
}

constexpr std::array kLayouts = {of_2_30(), of_2_29(), of_2_28(), kOf2_27};
constexpr int kFirstUnknown = 23100;

}  // namespace

const Layout* layout_of(int version) {
    if (version >= kFirstUnknown) {
        return nullptr;
    }
    for (const Layout& layout : kLayouts) {
        if (version >= layout.oldest) {
            return &layout;
        }
    }
    return nullptr;
}

}  // namespace softdev::nccl_kernels
