// SPDX-License-Identifier: Apache-2.0
// NCCL tuner plugin, versions 2 to 6. NCCL looks for the newest that it knows.
#include "plugin/nccl_tuner.h"

#include <cstdint>

#include "base/presence.h"
#include "plugin/tuner.h"

namespace deft::tuner {
namespace {

int init_v2(std::size_t, std::size_t nodes, deft_net_logger_t, void** context) {
    return init(nodes, context);
}

// It does not say what NCCL has for the call, so nothing is asked for.
int get_info_v2(void*, int, std::size_t, int, int, int, int*, int*, int*) {
    return DEFT_NET_SUCCESS;
}

int get_info_v3(void* context, int, std::size_t, int, float** costs, int algorithms, int protocols,
                int* channels) {
    return choose(
        {context, reinterpret_cast<float*>(costs), algorithms, protocols, false, channels});
}

int get_info_v4(void* context, int, std::size_t, int, float** costs, int algorithms, int protocols,
                int registered, int* channels) {
    return choose({context, reinterpret_cast<float*>(costs), algorithms, protocols, registered != 0,
                   channels});
}

int init_v5(void** context, std::uint64_t, std::size_t, std::size_t nodes, deft_net_logger_t,
            deft_tuner_nvl_domains_t*, void*) {
    return init(nodes, context);
}

// What a look-up of a table's name finds. NULL is what NCCL finds in a library without a tuner.
using Symbol = void (*)();
Symbol shown(const void* table) noexcept {
    return Presence::process().hides_tuner()
               ? nullptr
               : reinterpret_cast<Symbol>(reinterpret_cast<std::uintptr_t>(table));
}

}  // namespace

const deft_tuner_v2_t kTableV2 = {
    .name = kName,
    .init = init_v2,
    .getCollInfo = get_info_v2,
    .destroy = finish,
};

const deft_tuner_v3_t kTableV3 = {
    .name = kName,
    .init = init_v2,
    .getCollInfo = get_info_v3,
    .destroy = finish,
};

const deft_tuner_v4_t kTableV4 = {
    .name = kName,
    .init = init_v2,
    .getCollInfo = get_info_v4,
    .destroy = finish,
};

const deft_tuner_v5_t kTableV5 = {
    .name = kName,
    .init = init_v5,
    .getCollInfo = get_info_v4,
    .finalize = finish,
};

const deft_tuner_v6_t kTableV6 = {
    .name = kName,
    .init = init_v5,
    .getCollInfo = get_info_v4,
    .finalize = finish,
    .getChunkSize = nullptr,
};

}  // namespace deft::tuner

// NCCL takes whatever has the name for a tuner, and there is no way to refuse later: an error of
// init fails the communicator. So the names are indirect: the loader calls these functions when
// somebody looks a name up. Nothing here may refer to the names, or the loader would call them when
// it loads the library.
#define DEFT_TUNER_TABLE(version)                                  \
    extern "C" __attribute__((visibility("hidden")))               \
    deft::tuner::Symbol deft_resolve_tuner_v##version() {          \
        return deft::tuner::shown(&deft::tuner::kTableV##version); \
    }                                                              \
    extern "C"                                                     \
        __attribute__((visibility("default"),                      \
                       ifunc("deft_resolve_tuner_v" #version))) void ncclTunerPlugin_v##version()

DEFT_TUNER_TABLE(2);
DEFT_TUNER_TABLE(3);
DEFT_TUNER_TABLE(4);
DEFT_TUNER_TABLE(5);
DEFT_TUNER_TABLE(6);
