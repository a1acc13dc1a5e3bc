// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/caretaker.h"

#include <algorithm>

#include "plugin/core/endpoint_thread.h"

namespace deft::net {
namespace {

constexpr Nanos kInterval = 250 * kMillisecond;
// Where something moved there may be more, of this or of the same in answer to it: looked at again
// so soon, then less and less often.
constexpr Nanos kSoon = kMillisecond;

class Caretaker final : public EndpointThread {
public:
    Caretaker() : EndpointThread("deft-care") {}

private:
    void run(std::uint64_t generation) override {
        Nanos all_at = steady_now() + kInterval;
        Nanos nap = kInterval;
        for (;;) {
            announce_sleep();
            sleep(std::clamp<Nanos>(all_at - steady_now(), 0, nap));
            (void)end_sleep();
            const Nanos now = steady_now();
            const bool all = now >= all_at;
            bool moved = false;
            const bool goes_on = go_round(generation, [&](Entry& entry) {
                if (all || entry.stirs) {
                    const bool moves = visit(entry);
                    entry.stirs = moves || (entry.stirs && !all);
                    moved = moved || moves;
                }
            });
            if (!goes_on) {
                return;
            }
            while (take_out() != nullptr) {  // closes it
            }
            all_at = all ? now + kInterval : all_at;
            nap = moved ? kSoon : std::min(2 * nap, kInterval);
        }
    }

    // NCCL's bytes are never touched: a request it holds it asks for itself, and once it gives up
    // on a communicator it frees the buffers before it closes the connection.
    static bool visit(Entry& entry) {
        Turn& turn = entry.endpoint->turn;
        if (!turn.left_alone() || !turn.take_spare()) {
            return false;
        }
        const bool moved = !entry.endpoint->held() && drive(entry, steady_now());
        turn.give_spare();
        return moved;
    }
};

Caretaker& caretaker() {
    static auto& one = *new Caretaker;
    return one;
}

}  // namespace

bool look_after(Endpoint& endpoint) {
    return caretaker().add(endpoint);
}

bool see_off(std::unique_ptr<Endpoint>& endpoint) {
    return caretaker().adopt(endpoint);
}

}  // namespace deft::net
