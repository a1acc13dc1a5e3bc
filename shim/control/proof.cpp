// SPDX-License-Identifier: Apache-2.0
#include "shim/control/proof.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "shim/nccl/sum_mark.h"
#include "shim/settings/companion.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

constexpr std::size_t kNoPlace = ~std::size_t{0};

// Of a sum that is no bucket, for people.
std::string what_it_is(const Gradient& gradient) {
    const std::string bytes = std::to_string(gradient.count * element_size(gradient.type));
    const std::string sum = "a sum of " + bytes + " bytes ";
    switch (gradient.mark == 0 ? DEFT_SUM_BUCKET : unpack(gradient.mark).kind) {
        case DEFT_SUM_FORWARD:
            return sum +
                   "is made outside of backward (activations, averaged parameters, "
                   "statistics), so it is no gradient";
        case DEFT_SUM_BACKWARD:
            return sum +
                   "is made in backward and is no bucket of DistributedDataParallel "
                   "(gradients of activations or of gathered features)";
        case DEFT_SUM_PARAMETERS:
            return "parameters are averaged (" + sum + ")";
        case DEFT_SUM_HELD_BACK:
            return sum + "between backward and step is not the gradient of one parameter";
        case DEFT_SUM_COMPRESSED:
            return sum + "is made in a communication hook of the job's own (compression)";
        default:
            break;
    }
    const ModuleProof note = module_proof(0);
    return note.pending || note.holds ? sum + "is none that the companion knows to be a gradient"
                                      : note.why;
}

// The first of a module's that the companion has refused; "": it has none.
std::string refusal(const std::vector<Gradient>& gradients) {
    for (const Gradient& gradient : gradients) {
        const ModuleProof module = module_proof(unpack(gradient.mark).module);
        if (is_bucket(gradient.mark) && !module.holds && !module.pending) {
            return module.why;
        }
    }
    return {};
}

// The cycle is each of one module's buckets once, in their order: the small ones too, which plans
// leave alone.
std::string disorder(const JobView& view) {
    if (first_place(view.gradients) == kNoPlace) {
        return "the buckets of two modules travel over one communicator, or some twice an "
               "iteration";
    }
    const std::vector<std::uint64_t>& buckets = view.buckets;
    const auto begins = std::find_if(buckets.begin(), buckets.end(),
                                     [](std::uint64_t mark) { return unpack(mark).place == 0; });
    const auto first = static_cast<std::size_t>(begins - buckets.begin());
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const SumMark mark = unpack(buckets[(first + i) % buckets.size()]);
        if (mark.place != i || mark.last != (i + 1 == buckets.size())) {
            return "the iteration that was learned is not one set of the module's buckets";
        }
    }
    return {};
}

}  // namespace

bool proof_needed() {
    return shim_mode() >= ShimMode::Deft && !Config::process().is(Key::Gradients, "trust");
}

bool proof_told() {
    return proof_needed() || layers_may_wait();
}

std::size_t first_place(const std::vector<Gradient>& gradients) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const SumMark mark = unpack(gradients[i].mark);
        const SumMark least = unpack(gradients[first].mark);
        if (!is_bucket(gradients[i].mark) || mark.module != least.module ||
            (i != first && mark.place == least.place)) {
            return kNoPlace;
        }
        first = mark.place < least.place ? i : first;
    }
    return gradients.empty() ? kNoPlace : first;
}

void begin_at_first_place(JobView& view) {
    const std::size_t first = first_place(view.gradients);
    if (first == kNoPlace || first == 0) {
        return;
    }
    std::rotate(view.gradients.begin(), view.gradients.begin() + static_cast<std::ptrdiff_t>(first),
                view.gradients.end());
    view.signature = signature_of(view.gradients);
    view.start += view.start != CallRecord::kNoOrdinal ? first : 0;
}

std::vector<std::uint64_t> marks_of(const JobView& view) {
    std::vector<std::uint64_t> marks;
    for (const Gradient& gradient : view.gradients) {
        marks.push_back(gradient.mark);
    }
    return marks;
}

Proof prove(const JobView& view) {
    Proof proof;
    proof.who = companion_name();
    const ModuleProof process = module_proof(0);
    const auto other = std::find_if(view.gradients.begin(), view.gradients.end(),
                                    [](const Gradient& g) { return !is_bucket(g.mark); });
    if (proof.who.empty() || marks_ended()) {
        proof.why = process.why;
    } else if (std::string refused = refusal(view.gradients); !refused.empty()) {
        proof.why = std::move(refused);
    } else if (other != view.gradients.end()) {
        proof.why = what_it_is(*other);
    } else {
        proof.why = disorder(view);
    }
    if (!proof.why.empty()) {
        return proof;
    }
    proof.module = unpack(view.gradients.front().mark).module;
    return prove_still(proof);
}

Proof prove_still(const Proof& before) {
    Proof proof = before;
    if (proof.module != 0) {
        const ModuleProof module = module_proof(proof.module);
        proof.holds = module.holds;
        proof.pending = module.pending;
        proof.layers = module.layers;
        proof.why = module.why;
    }
    return proof;
}

Unproven find_unproven(const std::map<int, Proof>& proofs, int nranks, const std::string& own) {
    Unproven unproven;
    unproven.layers = true;
    for (int rank = 0; rank < nranks; ++rank) {
        const std::string of = "rank " + std::to_string(rank) + ": ";
        const auto found = proofs.find(rank);
        unproven.layers = unproven.layers && found != proofs.end() && found->second.layers;
        if (found == proofs.end() || found->second.pending) {
            unproven.pending = true;
            unproven.why =
                of + (found == proofs.end() ? "nothing has been said of its gradients yet"
                                            : found->second.why);
        } else if (!found->second.holds) {
            return {of + found->second.why, false, false};
        } else if (found->second.who != own) {
            return {of + "its companion is " + found->second.who + ", the leader's is " + own,
                    false, false};
        }
    }
    return unproven;
}

const char* Reasons::keep(std::string why) {
    if (why.empty()) {
        return nullptr;
    }
    if (kept_.size() >= kMost && kept_.count(why) == 0) {
        why = "the reasons change all the time";
    }
    return kept_.insert(std::move(why)).first->c_str();
}

}  // namespace deft::director
