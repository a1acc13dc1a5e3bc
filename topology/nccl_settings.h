// SPDX-License-Identifier: Apache-2.0
// NCCL's own settings, as NCCL will read them: the environment, else the first of its files that
// has the name. NCCL puts what its files say into the environment at its first communicator, which
// is later than the hooks look.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deft {

// The environment, then the file named by NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf.
std::optional<std::string> nccl_setting(const char* name);

// The first "NAME=value" in the text of such a file; lines that begin with '#' do not count. Pure.
std::optional<std::string> nccl_setting_in(std::string_view text, std::string_view name);

// True if NCCL_NET_PLUGIN brings deft in: "deft", the library's file name with or without a path,
// "STATIC_PLUGIN". `alone`: and nothing else. Pure.
bool names_deft(std::string_view plugins, bool alone);

}  // namespace deft
