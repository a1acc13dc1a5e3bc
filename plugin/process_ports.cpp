// SPDX-License-Identifier: Apache-2.0
#include "plugin/process_ports.h"

#include "plugin/ucx/ports.h"
#include "plugin/verbs/ports.h"

namespace deft::net {
namespace {

Ports all_of(const VerbsPorts& verbs, const UcxPorts& ucx) {
    Ports all(verbs.begin(), verbs.end());
    all.insert(all.end(), ucx.begin(), ucx.end());
    return all;
}

}  // namespace

Ports first_ports() {
    return all_of(first_verbs_ports(), ucx_ports());
}

Ports ports_now() {
    return all_of(verbs_ports_now(), ucx_ports());
}

}  // namespace deft::net
