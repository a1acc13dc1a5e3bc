// SPDX-License-Identifier: Apache-2.0
// A protection domain of an RDMA device, and memory that is registered in it.
#pragma once

#include <memory>
#include <string>

#include "plugin/core/region.h"
#include "plugin/verbs/context.h"

namespace deft::net {

class VerbsDomain final : public Domain, public std::enable_shared_from_this<VerbsDomain> {
public:
    // NULL and the cause.
    static std::shared_ptr<VerbsDomain> make(std::shared_ptr<VerbsContext> context,
                                             std::string& problem);
    ~VerbsDomain() override;
    VerbsDomain(const VerbsDomain&) = delete;
    VerbsDomain& operator=(const VerbsDomain&) = delete;

    VerbsContext& context() const { return *context_; }
    deft_verbs_pd_t* get() const { return domain_; }
    // Whether a dmabuf can be registered. Asks the driver.
    bool takes_dmabuf() const;
    // Not shared with others: for memory of a path's own.
    std::unique_ptr<Registration> register_own(void* data, std::size_t size, std::string& problem);

protected:
    std::unique_ptr<Registration> enter(const Memory& memory, std::string& problem) override;

private:
    VerbsDomain(std::shared_ptr<VerbsContext> context, deft_verbs_pd_t* domain)
        : context_(std::move(context)), domain_(domain) {}

    const std::shared_ptr<VerbsContext> context_;
    deft_verbs_pd_t* const domain_;
};

}  // namespace deft::net
