// SPDX-License-Identifier: Apache-2.0
// NCCL tuner plugin, versions 2 to 6. NCCL looks for the newest that it knows.
#include "plugin/nccl_net_common.h"
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

}  // namespace
}  // namespace deft::tuner

DEFT_EXPORT const deft_tuner_v2_t ncclTunerPlugin_v2 = {
    .name = deft::tuner::kName,
    .init = deft::tuner::init_v2,
    .getCollInfo = deft::tuner::get_info_v2,
    .destroy = deft::tuner::finish,
};

DEFT_EXPORT const deft_tuner_v3_t ncclTunerPlugin_v3 = {
    .name = deft::tuner::kName,
    .init = deft::tuner::init_v2,
    .getCollInfo = deft::tuner::get_info_v3,
    .destroy = deft::tuner::finish,
};

DEFT_EXPORT const deft_tuner_v4_t ncclTunerPlugin_v4 = {
    .name = deft::tuner::kName,
    .init = deft::tuner::init_v2,
    .getCollInfo = deft::tuner::get_info_v4,
    .destroy = deft::tuner::finish,
};

DEFT_EXPORT const deft_tuner_v5_t ncclTunerPlugin_v5 = {
    .name = deft::tuner::kName,
    .init = deft::tuner::init_v5,
    .getCollInfo = deft::tuner::get_info_v4,
    .finalize = deft::tuner::finish,
};

DEFT_EXPORT const deft_tuner_v6_t ncclTunerPlugin_v6 = {
    .name = deft::tuner::kName,
    .init = deft::tuner::init_v5,
    .getCollInfo = deft::tuner::get_info_v4,
    .finalize = deft::tuner::finish,
    .getChunkSize = nullptr,
};
