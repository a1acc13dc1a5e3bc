// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/domain.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "topology/nccl_settings.h"

namespace deft::net {
namespace {

constexpr unsigned kAccess =
    DEFT_VERBS_ACCESS_LOCAL_WRITE | DEFT_VERBS_ACCESS_REMOTE_WRITE | DEFT_VERBS_ACCESS_REMOTE_READ;

class VerbsRegistration final : public Registration {
public:
    VerbsRegistration(std::shared_ptr<const VerbsDomain> domain, deft_verbs_mr_t* region)
        : domain_(std::move(domain)), region_(region) {
        local_key = region->lkey;
        remote_key = region->rkey;
    }
    ~VerbsRegistration() override {
        if (ForkGuard::process().in_child()) {
            return;
        }
        const VerbsContext& context = domain_->context();
        if (const int error = context.library().dereg_mr(region_); error != 0) {
            DEFT_WARN("%s: ibv_dereg_mr: %s", context.device().c_str(), std::strerror(error));
        }
    }
    VerbsRegistration(const VerbsRegistration&) = delete;
    VerbsRegistration& operator=(const VerbsRegistration&) = delete;

private:
    const std::shared_ptr<const VerbsDomain> domain_;
    deft_verbs_mr_t* const region_;
};

// Whether writes may reach memory in any order (ibv_reg_mr(3)): a completion still says that all
// before it are there, and nobody here looks at memory for a sign. NCCL's own switch: 0 off.
bool relaxed_ordering() {
    static const bool relaxed = nccl_setting("NCCL_IB_PCI_RELAXED_ORDERING").value_or("2") != "0";
    return relaxed;
}

deft_verbs_mr_t* enter_host(const VerbsLibrary& library, deft_verbs_pd_t* domain,
                            const Memory& memory) {
    void* const data = const_cast<void*>(memory.data);
    if (library.reg_mr_iova2 != nullptr && relaxed_ordering()) {
        return library.reg_mr_iova2(domain, data, memory.size,
                                    reinterpret_cast<std::uint64_t>(data),
                                    kAccess | DEFT_VERBS_ACCESS_RELAXED_ORDERING);
    }
    return library.reg_mr(domain, data, memory.size, int{kAccess});
}

// In whole pages, as the descriptor and `dmabuf_offset` begin at the page that `data` is in: what
// NCCL's own transport makes of the same arguments.
deft_verbs_mr_t* enter_dmabuf(const VerbsLibrary& library, deft_verbs_pd_t* domain,
                              const Memory& memory) {
    static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const auto data = reinterpret_cast<std::uint64_t>(memory.data);
    const std::uint64_t begin = data / page * page;
    const std::uint64_t pages = (data - begin + memory.size + page - 1) / page;
    return library.reg_dmabuf_mr(domain, memory.dmabuf_offset, pages * page, begin, memory.dmabuf,
                                 int{kAccess});
}

void tell_memory_limit(const char* device) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) {
        return;
    }
    DEFT_WARN_ONCE(
        "%s refuses memory: this process may lock %lu KiB (RLIMIT_MEMLOCK) and RDMA needs all of "
        "NCCL's buffers locked. Links over TCP go on. Raise the limit: 'ulimit -l unlimited', in "
        "containers --ulimit memlock=-1, in systemd LimitMEMLOCK=infinity",
        device, static_cast<unsigned long>(limit.rlim_cur / 1024));
}

}  // namespace

std::shared_ptr<VerbsDomain> VerbsDomain::make(std::shared_ptr<VerbsContext> context,
                                               std::string& problem) {
    deft_verbs_pd_t* const domain = context->library().alloc_pd(context->get());
    if (domain == nullptr) {
        problem = context->device() + ": no protection domain: " + std::strerror(errno);
        return nullptr;
    }
    return std::shared_ptr<VerbsDomain>(new VerbsDomain(std::move(context), domain));
}

VerbsDomain::~VerbsDomain() {
    if (ForkGuard::process().in_child()) {
        return;
    }
    if (const int error = context_->library().dealloc_pd(domain_); error != 0) {
        DEFT_WARN("%s: ibv_dealloc_pd: %s", context_->device().c_str(), std::strerror(error));
    }
}

std::unique_ptr<Registration> VerbsDomain::enter(const Memory& memory, std::string& problem) {
    const VerbsLibrary& library = context_->library();
    deft_verbs_mr_t* region = nullptr;
    if (memory.dmabuf < 0) {
        region = enter_host(library, domain_, memory);
    } else if (library.reg_dmabuf_mr != nullptr) {
        region = enter_dmabuf(library, domain_, memory);
    } else {
        errno = EOPNOTSUPP;
    }
    if (region == nullptr) {
        const int error = errno;
        problem = context_->device() + ": " + std::to_string(memory.size) +
                  " bytes could not be registered: " + std::strerror(error);
        if (error == ENOMEM || error == EPERM) {
            tell_memory_limit(context_->device().c_str());
        }
        return nullptr;
    }
    return std::make_unique<VerbsRegistration>(shared_from_this(), region);
}

// A descriptor that cannot be: the kernel says so where it knows dmabuf, and that it does not else.
bool VerbsDomain::takes_dmabuf() const {
    const VerbsLibrary& library = context_->library();
    if (library.reg_dmabuf_mr == nullptr) {
        return false;
    }
    deft_verbs_mr_t* const made = library.reg_dmabuf_mr(domain_, 0, 0, 0, -1, 0);
    return made == nullptr && errno != EOPNOTSUPP && errno != EPROTONOSUPPORT;
}

std::unique_ptr<Registration> VerbsDomain::register_own(void* data, std::size_t size,
                                                        std::string& problem) {
    Memory memory;
    memory.data = data;
    memory.size = size;
    return enter(memory, problem);
}

}  // namespace deft::net
