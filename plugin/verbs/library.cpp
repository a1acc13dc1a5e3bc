// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/library.h"

#include <dlfcn.h>

#include <array>
#include <string>

#include "topology/nccl_settings.h"

namespace deft::net {
namespace {

// ibv_is_fork_initialized(): IBV_FORK_ENABLED, IBV_FORK_UNNEEDED.
constexpr int kForkEnabled = 1;
constexpr int kForkUnneeded = 2;

class Symbols {
public:
    Symbols(void* library, std::string& problem) : library_(library), problem_(problem) {}

    template <class Function>
    void need(const char* name, const char* version, Function& function) {
        want(name, version, function);
        if (function == nullptr && problem_.empty()) {
            problem_ = std::string("libibverbs has no ") + name + " of version " + version;
        }
    }
    template <class Function>
    void want(const char* name, const char* version, Function& function) {
        function = reinterpret_cast<Function>(::dlvsym(library_, name, version));
    }

private:
    void* library_;
    std::string& problem_;
};

void* open_file(const std::string& named) {
    for (const char* const name :
         {named.empty() ? nullptr : named.c_str(), "libibverbs.so", "libibverbs.so.1"}) {
        void* const file = name != nullptr ? ::dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (file != nullptr) {
            return file;
        }
    }
    return nullptr;
}

// Pages of registered memory must not be copied away from the card when the job forks.
bool prepare_for_fork(const VerbsLibrary& library, std::string& problem) {
    const int now = library.is_fork_initialized != nullptr ? library.is_fork_initialized() : 0;
    if (now == kForkEnabled || now == kForkUnneeded) {
        return true;
    }
    if (library.fork_init() != 0) {
        problem =
            "ibv_fork_init failed: memory was registered before, and the kernel does not copy "
            "pinned pages at fork";
        return false;
    }
    return true;
}

}  // namespace

bool open_verbs_library(const std::string& named, VerbsLibrary& library, std::string& problem) {
    void* const file = open_file(named);
    if (file == nullptr) {
        const char* const why = ::dlerror();
        problem = why != nullptr ? why : "libibverbs cannot be opened";
        return false;
    }
    problem.clear();
    Symbols symbols(file, problem);
    symbols.want("ibv_is_fork_initialized", "IBVERBS_1.13", library.is_fork_initialized);
    symbols.need("ibv_fork_init", "IBVERBS_1.1", library.fork_init);
    symbols.need("ibv_get_device_list", "IBVERBS_1.1", library.get_device_list);
    symbols.need("ibv_free_device_list", "IBVERBS_1.1", library.free_device_list);
    symbols.need("ibv_get_device_name", "IBVERBS_1.1", library.get_device_name);
    symbols.need("ibv_open_device", "IBVERBS_1.1", library.open_device);
    symbols.need("ibv_close_device", "IBVERBS_1.1", library.close_device);
    symbols.need("ibv_query_port", "IBVERBS_1.1", library.query_port);
    symbols.need("ibv_query_gid", "IBVERBS_1.1", library.query_gid);
    symbols.need("ibv_get_async_event", "IBVERBS_1.1", library.get_async_event);
    symbols.need("ibv_ack_async_event", "IBVERBS_1.1", library.ack_async_event);
    symbols.need("ibv_alloc_pd", "IBVERBS_1.1", library.alloc_pd);
    symbols.need("ibv_dealloc_pd", "IBVERBS_1.1", library.dealloc_pd);
    symbols.need("ibv_reg_mr", "IBVERBS_1.1", library.reg_mr);
    symbols.want("ibv_reg_mr_iova2", "IBVERBS_1.8", library.reg_mr_iova2);
    symbols.want("ibv_reg_dmabuf_mr", "IBVERBS_1.12", library.reg_dmabuf_mr);
    symbols.need("ibv_dereg_mr", "IBVERBS_1.1", library.dereg_mr);
    symbols.need("ibv_create_cq", "IBVERBS_1.1", library.create_cq);
    symbols.need("ibv_destroy_cq", "IBVERBS_1.1", library.destroy_cq);
    symbols.need("ibv_create_qp", "IBVERBS_1.1", library.create_qp);
    symbols.need("ibv_modify_qp", "IBVERBS_1.1", library.modify_qp);
    symbols.need("ibv_destroy_qp", "IBVERBS_1.1", library.destroy_qp);
    symbols.want("ibv_query_ece", "IBVERBS_1.10", library.query_ece);
    symbols.want("ibv_set_ece", "IBVERBS_1.10", library.set_ece);
    return problem.empty() && prepare_for_fork(library, problem);
}

const VerbsLibrary* process_verbs_library(std::string& problem) {
    struct Opened {
        VerbsLibrary library;
        std::string problem;
        bool good =
            open_verbs_library(nccl_setting("NCCL_IBVERBS_LIB").value_or(""), library, problem);
    };
    static const Opened* const opened = new Opened;  // the process's threads may outlive main()
    problem = opened->problem;
    return opened->good ? &opened->library : nullptr;
}

}  // namespace deft::net
