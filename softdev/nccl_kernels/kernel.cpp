// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl_kernels/kernel.h"

#include <bit>
#include <stdexcept>
#include <string>

#include "softdev/nccl_kernels/communicator.h"
#include "softdev/nccl_kernels/works.h"

namespace softdev::nccl_kernels {
namespace {

struct Batch {
    batch::Kind kind = batch::messages;
    const Function* function = nullptr;
    std::vector<const std::byte*> works;
    std::size_t next = 0;  ///< index of the channel's next batch, 0: this is the last
};

class Launch {
public:
    Launch(const Release& release, std::byte* arguments)
        : release_(release), arguments_(arguments) {}

    std::uint64_t channels() const {
        return load<std::uint64_t>(arguments_, arguments::kChannelMask);
    }
    std::byte* communicator() const {
        return load<std::byte*>(arguments_, arguments::kCommunicator);
    }
    /// The batch at this index, with those that it is extended by.
    Batch batch_at(std::size_t index) const;

private:
    std::size_t work_bytes(batch::Kind kind) const;
    const std::byte* work_at(std::uint32_t offset) const;

    const Release& release_;
    std::byte* arguments_;
};

std::size_t Launch::work_bytes(batch::Kind kind) const {
    switch (kind) {
        case batch::messages:
            return message_work::kBytes;
        case batch::collective:
            return release_.layout->work_bytes;
        case batch::registered_collective:
            return release_.layout->registered_work_bytes;
        case batch::broadcasts:
            return broadcast_work::kBytes;
    }
    return 0;
}

const std::byte* Launch::work_at(std::uint32_t offset) const {
    if (load<std::uint8_t>(arguments_, arguments::kStorage) == 0) {
        return arguments_ + offset;
    }
    const auto mask = load<std::uint32_t>(arguments_, arguments::kWorkMask);
    return load<const std::byte*>(arguments_, arguments::kWorks) + (offset & mask);
}

Batch Launch::batch_at(std::size_t index) const {
    Batch result;
    for (;;) {
        const std::byte* entry = arguments_ + arguments::kBatches + index * batch::kBytes;
        const auto flags = load<std::uint32_t>(entry, batch::kFlags);
        const std::size_t jump = flags & 0x3fff;
        const bool extended = (flags >> 14 & 1) != 0;
        result.kind = static_cast<batch::Kind>(flags >> 15 & 3);
        const std::size_t number = flags >> 17;
        if (number >= release_.functions.size()) {
            throw std::runtime_error("there is no function " + std::to_string(number) +
                                     " in this release");
        }
        result.function = &release_.functions[number];
        const auto base = load<std::uint32_t>(entry, batch::kBase);
        auto set = load<std::uint64_t>(entry, batch::kSet);
        for (; set != 0; set &= set - 1) {
            const auto bit = static_cast<std::uint32_t>(std::countr_zero(set));
            result.works.push_back(
                work_at(base + bit * static_cast<std::uint32_t>(work_bytes(result.kind))));
        }
        index += jump;
        if (!extended) {
            result.next = jump == 0 ? 0 : index;
            return result;
        }
    }
}

std::vector<char> profiled(const Batch& batch, const Layout& layout) {
    std::vector<char> wanted;
    for (const std::byte* work : batch.works) {
        switch (batch.kind) {
            case batch::messages:
                wanted.push_back((load<std::uint8_t>(work, message_work::kFlags) &
                                  message_work::kProfiled) != 0);
                break;
            case batch::collective:
            case batch::registered_collective:
                wanted.push_back(CollectiveWork(layout, work).profiled());
                break;
            case batch::broadcasts:
                wanted.push_back(false);
        }
    }
    return wanted;
}

bool run_batch(const Channel& channel, const Batch& batch) {
    if (batch.kind == batch::messages) {
        return run_messages(channel, batch.works);
    }
    if (!supported(*batch.function)) {
        throw std::runtime_error(describe(*batch.function) +
                                 " is not emulated: NCCL_ALGO=Ring or Tree avoids it");
    }
    if (batch.kind == batch::broadcasts) {
        return run_broadcasts(channel, batch.function->protocol, batch.works);
    }
    for (const std::byte* at : batch.works) {
        const CollectiveWork work(channel.layout(), at);
        if (work.registered()) {
            throw std::runtime_error("registered buffers are not emulated");
        }
        if (!run_collective(channel, *batch.function, work)) {
            return false;
        }
    }
    return true;
}

void run_channel(const Launch& launch, const Release& release, int number, std::size_t first) {
    const Channel channel(*release.layout, launch.communicator(), number);
    std::size_t index = first;
    do {
        const Batch batch = launch.batch_at(index);
        const std::vector<char> wanted = profiled(batch, *release.layout);
        channel.note_started(wanted);
        if (!run_batch(channel, batch)) {
            return;
        }
        channel.note_completed(wanted);
        index = batch.next;
    } while (index != 0);
}

}  // namespace

void run_kernel(const Release& release, std::byte* arguments, const Report& report) {
    const Launch launch(release, arguments);
    std::vector<int> numbers;
    for (std::uint64_t left = launch.channels(); left != 0; left &= left - 1) {
        numbers.push_back(std::countr_zero(left));
    }
    run_together(
        numbers.size(), [&](std::size_t i) { run_channel(launch, release, numbers[i], i); },
        report);
}

}  // namespace softdev::nccl_kernels
