// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace deft {

bool random_bytes(void* data, std::size_t size) {
    const auto wanted = static_cast<ssize_t>(size);
    if (getrandom(data, size, 0) == wanted) {
        return true;
    }
    const UniqueFd source(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
    return source && read(source.get(), data, size) == wanted;
}

}  // namespace deft
