// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/rendezvous.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/config.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/presence.h"
#include "base/supported.h"
#include "shim/hooks/job_network.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft::rendezvous {
namespace {

// NCCL builds the id from NCCL_COMM_ID, on each rank anew, with this in place of a random number.
constexpr unsigned char kFixedMagic[8] = {0x80, 0x02, 0x80, 0x02, 0x80, 0x02, 0x80, 0x02};

void forwarded(const char* why) {
    DEFT_WARN_ONCE("every call is forwarded to NCCL unchanged, on every rank: %s", why);
}

// False, and said, if this release may need the bytes for itself.
bool leaves_bytes_alone(int nccl_version) {
    if (nccl_version >= kOldestNccl && nccl_version < kNewestNccl) {
        return true;
    }
    forwarded(("it is not known whether NCCL " + std::to_string(nccl_version) +
               " leaves the spare bytes of its unique id alone")
                  .c_str());
    return false;
}

agreement::Terms terms_of(int nccl_version, const char* network) {
    agreement::Terms terms;
    terms.nccl_version = nccl_version;
    terms.settings = director::Settings::terms();
    // Lanes go over what is named here, and over the others.
    terms.settings += std::string(" netName=") + (network != nullptr ? network : "any");
    terms.timeout = Config::process().duration(Key::AgreeTimeout);
    return terms;
}

}  // namespace

bool agreement_wanted() noexcept {
    return plans(shim_mode());
}

void issued(const Hook& hook, deft_nccl_unique_id_t* id, int result) noexcept {
    if (result != DEFT_NCCL_SUCCESS || id == nullptr || !hook.watched() || !agreement_wanted()) {
        return;
    }
    // NCCL has read its own configuration files by now, and put what they say into the environment.
    const char* const fixed = std::getenv("NCCL_COMM_ID");
    if ((fixed != nullptr && *fixed != '\0') ||
        std::memcmp(id->internal, kFixedMagic, sizeof(kFixedMagic)) == 0) {
        forwarded("NCCL_COMM_ID is set, so each rank makes the unique id for itself");
        return;
    }
    try {
        std::string why;
        if (leaves_bytes_alone(hook.table()->version) &&
            !agreement::write_trailer(*id, why, job_network::made_here(hook))) {
            forwarded(why.c_str());
        }
    } catch (...) {
    }
}

agreement::CouncilRef join(const Hook& hook, const deft_nccl_unique_id_t& id, int nranks, int rank,
                           const char* network) noexcept {
    if (!hook.watched() || !agreement_wanted() || nranks < 2) {
        return {};
    }
    try {
        std::string why;
        if (!agreement::has_trailer(id, &why)) {
            // Where this rank's NCCL is to blame the maker's is too, or differs. An id that has one
            // was made by a known release: its leader says what differs.
            if (leaves_bytes_alone(hook.table()->version)) {
                forwarded(why.c_str());
            }
            return {};
        }
        ForkGuard::process().arm();
        return agreement::join(id, nranks, rank, terms_of(hook.table()->version, network));
    } catch (...) {
        return {};
    }
}

bool refuses_lone_process(const Hook& hook, int nranks) noexcept {
    if (!hook.watched() || !agreement_wanted() || !shim_required() || nranks < 2) {
        return false;
    }
    DEFT_WARN(
        "DEFT_REQUIRE=1: ncclCommInitAll fails because one process with all ranks has no agreement "
        "by which deft could act; make the communicators with ncclCommInitRank");
    return true;
}

agreement::CouncilRef inherit(agreement::Council& parent, std::uint64_t name, int nccl_version,
                              int nranks, int rank, const char* network) noexcept {
    if (!agreement_wanted() || name == 0 || nranks < 2) {
        return {};
    }
    try {
        return agreement::inherit(parent, name, nranks, rank, terms_of(nccl_version, network));
    } catch (...) {
        return {};
    }
}

bool acceptable(agreement::Council* council, int nranks) noexcept {
    if (!shim_required() || nranks == 1) {
        return true;
    }
    if (Presence::process().plugin_refused.load(std::memory_order_acquire)) {
        DEFT_WARN(
            "DEFT_REQUIRE=1: the communicator fails because deft's network plugin could not start "
            "(see the message above)");
        return false;
    }
    if (!agreement_wanted()) {
        return true;
    }
    if (council == nullptr) {
        DEFT_WARN(
            "DEFT_REQUIRE=1: the communicator fails because its ranks cannot agree (see the "
            "message above)");
        return false;
    }
    // Longer than the longest that a member waits for its leader.
    const auto limit = 2 * Config::process().duration(Key::AgreeTimeout) + std::chrono::seconds(5);
    if (council->wait_verdict(agreement::Clock::now() + limit) == agreement::Verdict::On) {
        return true;
    }
    try {
        DEFT_WARN("DEFT_REQUIRE=1: the communicator fails because not every rank can use deft: %s",
                  council->reason().c_str());
    } catch (...) {
    }
    return false;
}

}  // namespace deft::rendezvous
