// SPDX-License-Identifier: Apache-2.0
// Names that programs and their libraries want at load time, and what is not modelled.
#include <cerrno>
#include <cstdint>

#include "softdev/verbs/api.h"

// Nobody calls these through their true types: the objects they take cannot be made.
#define NOT_MODELLED(name)        \
    SOFTVERBS_EXPORT int name() { \
        errno = EOPNOTSUPP;       \
        return EOPNOTSUPP;        \
    }
#define PRIVATE(name) NOT_MODELLED(name)
#include "softdev/verbs/private_names.def"
#undef PRIVATE

SOFTVERBS_EXPORT bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = false;

SOFTVERBS_EXPORT ibv_srq* ibv_create_srq(ibv_pd* /*pd*/, ibv_srq_init_attr* /*init*/) {
    errno = EOPNOTSUPP;
    return nullptr;
}

SOFTVERBS_EXPORT int ibv_modify_srq(ibv_srq* /*srq*/, ibv_srq_attr* /*attr*/, int /*mask*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT int ibv_query_srq(ibv_srq* /*srq*/, ibv_srq_attr* /*attr*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT int ibv_destroy_srq(ibv_srq* /*srq*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT ibv_ah* ibv_create_ah(ibv_pd* /*pd*/, ibv_ah_attr* /*attr*/) {
    errno = EOPNOTSUPP;
    return nullptr;
}

SOFTVERBS_EXPORT int ibv_init_ah_from_wc(ibv_context* /*context*/, std::uint8_t /*port*/,
                                         ibv_wc* /*wc*/, ibv_grh* /*grh*/, ibv_ah_attr* /*attr*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* /*pd*/, ibv_wc* /*wc*/, ibv_grh* /*grh*/,
                                               std::uint8_t /*port*/) {
    errno = EOPNOTSUPP;
    return nullptr;
}

SOFTVERBS_EXPORT int ibv_destroy_ah(ibv_ah* /*ah*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT int ibv_attach_mcast(ibv_qp* /*qp*/, const ibv_gid* /*gid*/,
                                      std::uint16_t /*lid*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT int ibv_detach_mcast(ibv_qp* /*qp*/, const ibv_gid* /*gid*/,
                                      std::uint16_t /*lid*/) {
    return EOPNOTSUPP;
}

SOFTVERBS_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context* /*context*/, ibv_ah_attr* /*attr*/,
                                                 std::uint8_t* /*mac*/, std::uint16_t* /*vlan*/) {
    return EOPNOTSUPP;
}

NOT_MODELLED(ibv_dontfork_range)
NOT_MODELLED(ibv_dofork_range)
NOT_MODELLED(ibv_copy_ah_attr_from_kern)
NOT_MODELLED(ibv_copy_qp_attr_from_kern)
NOT_MODELLED(ibv_copy_path_rec_from_kern)
NOT_MODELLED(ibv_copy_path_rec_to_kern)
