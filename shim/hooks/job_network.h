// SPDX-License-Identifier: Apache-2.0
// Which network the job's own communicators get where NCCL's IB could carry them: "IB" by name, so
// that deft's plugin, which NCCL would prefer, serves lanes alone (DEFT_RDMA=aside).
//
// All ranks of a communicator decide alike: by what the maker of its unique id says in the id;
// where it says nothing, by the ports of their own host, as NCCL would.
#pragma once

#include "shim/agreement/council.h"
#include "shim/executor/lane_config.h"
#include "shim/hooks/hook.h"

namespace deft::job_network {

// NCCL's names for its networks.
inline constexpr char kIb[] = "IB";

// The configuration that a maker of communicators hands on: the job's, or a copy that names a
// network. Lives as long as the call.
class Config {
public:
    // For a communicator with this unique id; null: made in this process alone (ncclCommInitAll).
    // `own` is the job's, null where it gives none.
    Config(const Hook& hook, const deft_nccl_unique_id_t* id, deft_nccl_config_t* own) noexcept;
    // For a child of the hook's communicator.
    Config(const Hook& hook, deft_nccl_config_t* own) noexcept;
    Config(const Config&) = delete;

    // A network is named where the job has not.
    bool changed() const { return changed_; }
    deft_nccl_config_t* get() { return changed_ ? bytes_.get() : own_; }
    // The name the communicator's network will have been chosen by; null: NCCL chooses. Valid for
    // the life of the process.
    const char* network() const { return network_; }
    // NCCL may make children of it that live on its network (splitShare, shrinkShare).
    bool shares() const { return shares_; }
    // What it chooses besides, or inherits; null: nothing. Valid for the life of the process.
    const ConfigChoices* choices() const { return choices_; }

private:
    deft_nccl_config_t* const own_;
    executor::ConfigBytes bytes_;
    bool changed_ = false;
    bool shares_ = false;
    const char* network_ = nullptr;
    const ConfigChoices* choices_ = nullptr;

    bool take_own() noexcept;
    void name_ib(const Hook& hook) noexcept;
};

// What a unique id that is made here tells the other ranks.
agreement::Maker made_here(const Hook& hook) noexcept;

// ncclCommInitAll with a configuration, which that call does not take: all devices' communicators
// in one group. False: it has to be the library's own (wrong arguments are its to judge).
bool init_all(const NcclTable& table, deft_nccl_comm_t* comms, int ndev, const int* devices,
              deft_nccl_config_t* config, int& result) noexcept;

}  // namespace deft::job_network
