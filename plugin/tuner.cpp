// SPDX-License-Identifier: Apache-2.0
#include "plugin/tuner.h"

#include <cstdint>

#include "base/collective_choice.h"

namespace deft::tuner {
namespace {

// NCCL's predictions know nothing of what links really carry, but tell a protocol that sends twice
// the bytes from one that does not. What is predicted to take that many times the best is not
// tried.
constexpr float kFarFromBest = 6;

bool fits(const Request& request) {
    return request.costs != nullptr && request.channels != nullptr && request.algorithms >= 0 &&
           request.protocols == DEFT_TUNER_PROTOCOLS;
}

float* entry(const Request& request, int algorithm, int protocol) {
    return request.costs + algorithm * request.protocols + protocol;
}

template <class Visit>
void for_each_entry(const Request& request, Visit&& visit) {
    const int rows =
        request.algorithms < DEFT_TUNER_ALGORITHMS ? request.algorithms : DEFT_TUNER_ALGORITHMS;
    for (int algorithm = 0; algorithm < rows; ++algorithm) {
        for (int protocol = 0; protocol < request.protocols; ++protocol) {
            const float cost = *entry(request, algorithm, protocol);
            if (cost >= 0) {
                visit(algorithm, protocol, cost);
            }
        }
    }
}

CollectiveOffer offer_of(const Request& request) {
    CollectiveOffer offer;
    float least = 0;
    for_each_entry(request, [&](int algorithm, int protocol, float cost) {
        offer.available |= CollectiveOffer::bit_of(algorithm, protocol);
        if (offer.own.algorithm < 0 || cost < least) {
            least = cost;
            offer.own.algorithm = static_cast<std::int8_t>(algorithm);
            offer.own.protocol = static_cast<std::int8_t>(protocol);
        }
    });
    for_each_entry(request, [&](int algorithm, int protocol, float cost) {
        if (cost <= kFarFromBest * least) {
            offer.worth |= CollectiveOffer::bit_of(algorithm, protocol);
        }
    });
    return offer;
}

}  // namespace

// All that is known of a call comes with it, on its thread. Of the communicator only the number of
// nodes counts, and stands in the place of a pointer to it.
int init(std::size_t nodes, void** context) noexcept {
    if (context != nullptr) {
        *context = reinterpret_cast<void*>(nodes);
    }
    return DEFT_NET_SUCCESS;
}

int choose(const Request& request) noexcept {
    TunedCall* const call = TunedCall::current();
    // Within a node NCCL knows what there is, and no link of deft's is used.
    const bool one_node = reinterpret_cast<std::uintptr_t>(request.context) < 2;
    if (call == nullptr || one_node || !fits(request)) {
        return DEFT_NET_SUCCESS;
    }
    const CollectiveOffer offer = offer_of(request);
    // Whether buffers are registered is this rank's own affair: it must not decide what is done.
    call->asked(request.registered ? nullptr : &offer);
    const CollectiveChoice& choice = call->choice();
    if (!offer.has(choice)) {
        return DEFT_NET_SUCCESS;
    }
    if (choice.algorithm >= 0) {
        *entry(request, choice.algorithm, choice.protocol) = 0;  // all others are above
    }
    if (choice.channels != 0) {
        *request.channels = choice.channels;
    }
    return DEFT_NET_SUCCESS;
}

int finish(void*) noexcept {
    return DEFT_NET_SUCCESS;
}

}  // namespace deft::tuner
