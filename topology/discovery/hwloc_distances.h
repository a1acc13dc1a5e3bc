// SPDX-License-Identifier: Apache-2.0
// The matrix "NVLinkBandwidth" of hwloc's XML files.
#pragma once

#include <string>
#include <unordered_map>

#include "topology/discovery/nvlink.h"

namespace deft::discovery {

struct XmlElement;

// Adds the NVLinks of the matrix under <topology>, if it has one. `objects`: what the file's GPUs
// and switches are, by their gp_index; what is not among them is taken for a CPU. False and one
// line in `problem` if the matrix is broken.
bool read_nvlink_matrix(const XmlElement& topology,
                        const std::unordered_map<std::string, NvLinkMatrix::Object>& objects,
                        Machine& machine, std::string& problem);

}  // namespace deft::discovery
