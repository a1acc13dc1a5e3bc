// SPDX-License-Identifier: Apache-2.0
// A libibverbs with the devices that FAKE_VERBS names ("mlx5_0 mlx5_1!"), none if it is not set.
// One with a '!' cannot be opened.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Device {
    std::string name;
    bool opens;
};
bool fork_ready = false;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int ibv_fork_init() {
    fork_ready = true;
    return 0;
}

void** ibv_get_device_list(int* count) {
    std::vector<Device*> devices;
    const char* const names = std::getenv("FAKE_VERBS");
    std::istringstream words(names != nullptr && fork_ready ? names : "");
    for (std::string word; words >> word;) {
        const bool opens = !word.ends_with('!');
        devices.push_back(new Device{word.substr(0, word.size() - (opens ? 0 : 1)), opens});
    }
    *count = static_cast<int>(devices.size());
    if (devices.empty()) {
        return nullptr;  // as where the kernel has no RDMA
    }
    auto** const list = new void*[devices.size() + 1]();
    for (std::size_t i = 0; i < devices.size(); ++i) {
        list[i] = devices[i];
    }
    return list;
}

void ibv_free_device_list(void** list) {
    for (void** each = list; *each != nullptr; ++each) {
        delete static_cast<Device*>(*each);
    }
    delete[] list;
}

const char* ibv_get_device_name(void* device) {
    return static_cast<Device*>(device)->name.c_str();
}

void* ibv_open_device(void* device) {
    return static_cast<Device*>(device)->opens ? new int(0) : nullptr;
}

int ibv_close_device(void* context) {
    delete static_cast<int*>(context);
    return 0;
}
}
#pragma GCC visibility pop
