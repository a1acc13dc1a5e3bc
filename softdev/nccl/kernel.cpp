// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/kernel.h"

#include <algorithm>

#include "softdev/nccl/error.h"
#include "softdev/nccl/ll.h"

namespace softdev::nccl {

Kernel::Kernel(const Work& work)
    : work_(work),
      reduction_(work.reduction),
      element_(type_size(work.reduction.type)),
      at_(work.programs.size(), 0) {
    if (reduction_.device_scalar != nullptr) {
        std::memcpy(&reduction_.scalar, reduction_.device_scalar, element_);
    }
    size_t largest = 0;
    for (const Program& program : work.programs) {
        if (program.shape.protocol != Protocol::kSimple) {
            for (const Connection* connection : program.receive) {
                largest = std::max(largest, connection->capacity(program.shape));
            }
            for (const Connection* connection : program.send) {
                largest = std::max(largest, connection->capacity(program.shape));
            }
        }
    }
    // LL: one decoded slice per input (at most 3 in a tree), and the output.
    scratch_.resize(largest * 4);
}

Kernel::State Kernel::advance() {
    bool moved = false;
    bool done = true;
    polling_ = false;
    for (size_t i = 0; i < at_.size(); ++i) {
        const Program& program = work_.programs[i];
        while (at_[i] < program.steps.size()) {
            const Step& step = program.steps[at_[i]];
            if (!ready(program, step) || !run_step(program, step)) {
                break;
            }
            ++at_[i];
            moved = true;
        }
        if (!error_.empty()) {
            return State::kBroken;
        }
        done &= at_[i] == program.steps.size();
    }
    return done ? State::kDone : moved ? State::kMoved : State::kStuck;
}

bool Kernel::ready(const Program& program, const Step& step) {
    if ((step.flags & Step::kReceive) != 0) {
        for (Connection* connection : program.receive) {
            if (!connection->ready_for(program.shape) || !connection->can_take()) {
                return false;
            }
        }
    }
    if ((step.flags & Step::kSend) != 0) {
        for (Connection* connection : program.send) {
            if (!connection->ready_for(program.shape) || !connection->can_fill()) {
                return false;
            }
        }
    }
    return true;
}

bool Kernel::gather_inputs(const Program& program, const Step& step, const void** inputs) {
    const size_t bytes = step.count * element_;
    const bool low_latency = program.shape.protocol != Protocol::kSimple;
    for (size_t k = 0; k < program.receive.size(); ++k) {
        Connection& connection = *program.receive[k];
        if (low_latency) {
            std::byte* place = scratch_.data() + (k + 1) * scratch_.size() / 4;
            const uint32_t flag = ll_flag(connection.sequence());
            if (program.shape.protocol == Protocol::kLL
                    ? !ll_decode(connection.take_at(), place, bytes, flag)
                    : !ll128_decode(connection.take_at(), place, bytes, flag)) {
                polling_ = true;
                return false;
            }
            inputs[k] = place;
            continue;
        }
        if (connection.take_size() != bytes) {
            error_ = format("the network delivered %zu bytes from rank %d where %zu were sent",
                            connection.take_size(), connection.peer(), bytes);
            return false;
        }
        inputs[k] = connection.take_at();
    }
    return true;
}

bool Kernel::run_step(const Program& program, const Step& step) {
    const void* inputs[8] = {};
    const bool receive = (step.flags & Step::kReceive) != 0;
    if (receive && !gather_inputs(program, step, inputs)) {
        return false;
    }
    const bool send = (step.flags & Step::kSend) != 0;
    const bool low_latency = program.shape.protocol != Protocol::kSimple;
    // The value is made in its first destination and copied to the others while it is in the cache.
    std::byte* first = nullptr;
    std::byte* second = nullptr;
    if (send) {
        first = low_latency ? scratch_.data() : program.send[0]->fill_at();
    }
    if ((step.flags & Step::kResult) != 0) {
        (first == nullptr ? first : second) = step.result;
    }
    const size_t bytes = step.count * element_;
    if (step.count > 0) {
        const void* own = (step.flags & Step::kSource) != 0 ? step.source : nullptr;
        reduce(reduction_, first, second, own, (step.flags & Step::kOriginal) != 0, inputs,
               receive ? static_cast<int>(program.receive.size()) : 0,
               (step.flags & Step::kFinal) != 0, step.count);
        if (send && !low_latency) {
            for (size_t k = 1; k < program.send.size(); ++k) {
                std::memcpy(program.send[k]->fill_at(), first, bytes);
            }
        }
    }
    if (send) {
        publish(program, step, bytes);
    }
    if (receive) {
        for (Connection* connection : program.receive) {
            connection->release();
        }
    }
    return true;
}

void Kernel::publish(const Program& program, const Step&, size_t bytes) {
    for (Connection* connection : program.send) {
        const uint32_t flag = ll_flag(connection->sequence());
        switch (program.shape.protocol) {
            case Protocol::kSimple:
                connection->post(bytes);
                break;
            case Protocol::kLL:
                ll_encode(connection->fill_at(), scratch_.data(), bytes, flag);
                connection->post(ll_wire_bytes(bytes));
                break;
            case Protocol::kLL128:
                ll128_encode(connection->fill_at(), scratch_.data(), bytes, flag);
                connection->post(ll128_wire_bytes(bytes));
                break;
        }
    }
}

std::string Kernel::waiting_for() const {
    std::string text;
    const auto name = [&text](const char* what, int peer) {
        const std::string one = format("%s rank %d", what, peer);
        if (text.find(one) == std::string::npos) {
            text += (text.empty() ? "" : ", ") + one;
        }
    };
    for (size_t i = 0; i < at_.size(); ++i) {
        const Program& program = work_.programs[i];
        if (at_[i] == program.steps.size()) {
            continue;
        }
        const Step& step = program.steps[at_[i]];
        for (Connection* connection : program.receive) {
            if ((step.flags & Step::kReceive) != 0 && !connection->can_take()) {
                name("data from", connection->peer());
            }
        }
        for (Connection* connection : program.send) {
            if ((step.flags & Step::kSend) != 0 && !connection->can_fill()) {
                name("room at", connection->peer());
            }
        }
    }
    return text;
}

}  // namespace softdev::nccl
