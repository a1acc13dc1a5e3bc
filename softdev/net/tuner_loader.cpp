// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/tuner_loader.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "softdev/net/logger.h"
#include "softdev/net/plugin_loader.h"
#include "softdev/net/plugin_names.h"

namespace softdev::net {

// The library stays open: NCCL closes it after the last communicator only where there was one.
struct TunerTable {
    int version = 0;
    const void* symbol = nullptr;
};

namespace {

int nccl_version() {
    const char* const text = std::getenv("SOFTDEV_NCCL_VERSION");
    std::string error;
    const int version = text != nullptr && *text != '\0' ? parse_nccl_version(text, &error) : 0;
    return version != 0 ? version : kDefaultNcclVersion;
}

// Those that a release looks for; the oldest is 2.
int newest_table(int version) {
    const int minor = version / 100 % 100;
    return minor >= 30   ? 6
           : minor >= 28 ? 5
           : minor >= 24 ? 4
           : minor >= 22 ? 3
           : minor >= 21 ? 2
                         : 0;
}

void* open_named(const std::string& name, int version) {
    if (means_static_plugin(name, version)) {
        return dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
    }
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    const bool file =
        name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"));
    if (library == nullptr && !file) {
        library = dlopen(("libnccl-tuner-" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

std::shared_ptr<const TunerTable> find_table() {
    const int version = nccl_version();
    const char* const named = std::getenv("NCCL_TUNER_PLUGIN");
    if (version >= 22800 && named != nullptr && strcasecmp(named, "none") == 0) {
        return nullptr;
    }
    const bool given = named != nullptr && *named != '\0';
    void* library = open_named(given ? named : "libnccl-tuner.so", version);
    if (library == nullptr) {
        const std::string file = NetRegistry::process().external_file();
        library = file.empty() ? nullptr : dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    for (int table = newest_table(version); library != nullptr && table >= 2; --table) {
        const std::string symbol = "ncclTunerPlugin_v" + std::to_string(table);
        if (const void* const found = dlsym(library, symbol.c_str())) {
            // Every version begins with its name.
            SOFTNET_INFO("TUNER/Plugin: Using %s (v%d)", *static_cast<const char* const*>(found),
                         table);
            return std::make_shared<const TunerTable>(TunerTable{table, found});
        }
    }
    if (library != nullptr) {  // a network plugin is really unloaded after its last communicator
        dlclose(library);
    }
    return nullptr;
}

template <class Table>
const Table& as(const TunerTable& table) {
    return *static_cast<const Table*>(table.symbol);
}

// As NCCL's adapter makes a cost table of an old answer.
int ask_v2(const TunerTable& table, void* context, TunerQuestion& question) {
    int algorithm = DEFT_TUNER_UNDEF;
    int protocol = DEFT_TUNER_UNDEF;
    const int result = as<deft_tuner_v2_t>(table).getCollInfo(
        context, question.function, question.bytes, 0, 0, question.pipelined, &algorithm, &protocol,
        &question.channels);
    if (algorithm >= 0 && algorithm < DEFT_TUNER_ALGORITHMS && protocol >= 0 &&
        protocol < DEFT_TUNER_PROTOCOLS && question.costs[algorithm][protocol] >= 0) {
        question.costs[algorithm][protocol] = 0;
    }
    return result;
}

}  // namespace

CommTuner::CommTuner(CommTuner&& other) noexcept {
    *this = std::move(other);
}

CommTuner& CommTuner::operator=(CommTuner&& other) noexcept {
    if (this != &other) {
        release();
        table_ = std::exchange(other.table_, nullptr);
        context_ = std::exchange(other.context_, nullptr);
    }
    return *this;
}

CommTuner::~CommTuner() {
    release();
}

void CommTuner::release() {
    if (table_ == nullptr) {
        return;
    }
    const TunerTable& table = *table_;
    switch (table.version) {
        case 2:
            as<deft_tuner_v2_t>(table).destroy(context_);
            break;
        case 3:
            as<deft_tuner_v3_t>(table).destroy(context_);
            break;
        case 4:
            as<deft_tuner_v4_t>(table).destroy(context_);
            break;
        case 5:
            as<deft_tuner_v5_t>(table).finalize(context_);
            break;
        default:
            as<deft_tuner_v6_t>(table).finalize(context_);
    }
    table_ = nullptr;
}

int CommTuner::open(uint64_t comm_id, size_t ranks, size_t nodes, CommTuner* out) {
    // Once a process; where there is none NCCL does not look again either.
    static const std::shared_ptr<const TunerTable> found = find_table();
    if (found == nullptr) {
        return DEFT_NET_SUCCESS;
    }
    CommTuner tuner;
    const TunerTable& table = *found;
    deft_tuner_nvl_domains_t domains{static_cast<int>(nodes), 1, 1};
    double constants[256] = {};  // larger than any release's
    int result = DEFT_NET_SUCCESS;
    switch (table.version) {
        case 2:
            result = as<deft_tuner_v2_t>(table).init(ranks, nodes, logger(), &tuner.context_);
            break;
        case 3:
            result = as<deft_tuner_v3_t>(table).init(ranks, nodes, logger(), &tuner.context_);
            break;
        case 4:
            result = as<deft_tuner_v4_t>(table).init(ranks, nodes, logger(), &tuner.context_);
            break;
        case 5:
            result = as<deft_tuner_v5_t>(table).init(&tuner.context_, comm_id, ranks, nodes,
                                                     logger(), &domains, constants);
            break;
        default:
            result = as<deft_tuner_v6_t>(table).init(&tuner.context_, comm_id, ranks, nodes,
                                                     logger(), &domains, constants);
    }
    if (result == DEFT_NET_SUCCESS) {
        tuner.table_ = found;
        *out = std::move(tuner);
    }
    return result;
}

int CommTuner::ask(TunerQuestion& question) const {
    const TunerTable& table = *table_;
    auto* const costs = reinterpret_cast<float**>(&question.costs[0][0]);
    switch (table.version) {
        case 2:
            return ask_v2(table, context_, question);
        case 3:
            return as<deft_tuner_v3_t>(table).getCollInfo(
                context_, question.function, question.bytes, question.pipelined, costs,
                DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, &question.channels);
        case 4:
            return as<deft_tuner_v4_t>(table).getCollInfo(
                context_, question.function, question.bytes, question.pipelined, costs,
                DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, question.registered,
                &question.channels);
        case 5:
            return as<deft_tuner_v5_t>(table).getCollInfo(
                context_, question.function, question.bytes, question.pipelined, costs,
                DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, question.registered,
                &question.channels);
        default:
            return as<deft_tuner_v6_t>(table).getCollInfo(
                context_, question.function, question.bytes, question.pipelined, costs,
                DEFT_TUNER_ALGORITHMS, DEFT_TUNER_PROTOCOLS, question.registered,
                &question.channels);
    }
}

}  // namespace softdev::net
