// SPDX-License-Identifier: Apache-2.0
// Programs that have a service of the host's start a command in a container: docker, podman,
// nerdctl, kubectl. The command gets nothing of this environment, and often a network of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/environment.h"

namespace deft::tools::doctor {

bool is_container_client(std::string_view name);

// A program that starts its command in the file system of an image, with this environment:
// apptainer, enroot, srun --container-image. Files of the command's are not this host's. Pure.
bool enters_image(const std::vector<std::string>& command);

// "what; remedy" where a client gives a job of several hosts a network of its own. Pure.
std::string container_network(const std::vector<std::string>& command);

// The value of NVIDIA_VISIBLE_DEVICES by which the client's own words keep every GPU out of the
// container; a name alone has its value in `environment`. Empty: no such words. Pure.
std::string gpus_kept_out(const std::vector<std::string>& command, const Environment& environment);

}  // namespace deft::tools::doctor
