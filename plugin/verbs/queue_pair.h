// SPDX-License-Identifier: Apache-2.0
// A reliable-connection queue pair and its completion queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "plugin/verbs/domain.h"

namespace deft::net {

// What one end of a queue pair tells the other, over the connection beside it.
struct VerbsAddress {
    std::uint32_t qp = 0;  // 24 bits
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;    // DEFT_VERBS_MTU_*
    std::uint8_t layer = 0;  // DEFT_VERBS_LINK_LAYER_*
    deft_verbs_gid_t gid{};
    // What its vendor adds to a connection, of which both ends use what both have. Vendor 0: none.
    deft_verbs_ece_t ece{};
};
inline constexpr std::size_t kVerbsAddressBytes = 40;
void encode(const VerbsAddress& address, std::span<std::byte, kVerbsAddressBytes> out);
// False: it is none.
bool decode(std::span<const std::byte, kVerbsAddressBytes> in, VerbsAddress& address);

// Used by one thread at a time, but for what blocks: that runs on threads of its own
// (blocking_calls.h), each call with a reference of its own.
class VerbsQueuePair : public std::enable_shared_from_this<VerbsQueuePair> {
public:
    struct Options {
        int port = 1;
        int gid_index = 0;
        std::uint8_t traffic_class = 0;  // of packets on Ethernet: NCCL_IB_TC
        std::uint8_t service_level = 0;  // InfiniBand: NCCL_IB_SL
        std::uint16_t pkey_index = 0;    // NCCL_IB_PKEY
        std::uint32_t sends = 128;       // requests that may be open
        std::uint32_t receives = 64;
        bool readable = false;  // the peer may read memory
        // Until a request fails: 4.096 us * 2^timeout * (retries + 1), 0.9 s. Not as long as
        // NCCL's: another path takes over. Not 7: SoftRoCE tries for ever then.
        std::uint8_t timeout = 15;
        std::uint8_t retries = 6;
    };
    // Made: may receive. Connecting, Ending: a call is under way. Ready: may send. Ended: in the
    // error state. Gone: destroyed, as it could not be ended. Failed: why() says what.
    enum class State : std::uint8_t { Made, Connecting, Ready, Ending, Ended, Gone, Failed };

    // In state INIT, so that requests can be posted to it. NULL and the cause. Some milliseconds.
    static std::shared_ptr<VerbsQueuePair> make(std::shared_ptr<VerbsDomain> domain,
                                                const Options& options, std::string& problem);
    ~VerbsQueuePair();
    VerbsQueuePair(const VerbsQueuePair&) = delete;
    VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;

    const std::shared_ptr<VerbsDomain>& domain() const { return domain_; }
    VerbsContext& context() const { return domain_->context(); }
    const Options& options() const { return options_; }
    const VerbsAddress& own() const { return own_; }
    std::size_t largest_message() const { return largest_message_; }
    // Bytes of a full packet; once connect() was called, as both ports have them.
    std::size_t packet_bytes() const { return std::size_t{128} << mtu_; }
    State state() const { return state_.load(std::memory_order_acquire); }
    const std::string& why() const { return why_; }  // in state Failed

    // Whether both have extensions of the same vendor. The receiver's queue pair then is Ready
    // before its sender's is told of: own() says only from then on what was agreed.
    bool agrees(const VerbsAddress& peer) const {
        return own_.ece.vendor_id != 0 && own_.ece.vendor_id == peer.ece.vendor_id;
    }
    // To Ready or Failed, some time later. Once.
    void connect(const VerbsAddress& peer);
    // To itself: what it sends comes back from its own device.
    void connect_to_itself() { connect(own_); }
    // To Ended or Gone, some time later: what the peer sends is placed nowhere from then on, and no
    // request of our own reads memory. Idempotent.
    void end();
    // To Gone, some time later, from Ended: its requests do not come back. Whoever calls it has
    // taken all completions.
    void destroy();
    // An event has said that it is lost.
    bool lost() const { return lost_.load(std::memory_order_relaxed); }

    // 0 or errno. Not after end().
    int post(deft_verbs_send_wr_t& first);
    int post(deft_verbs_recv_wr_t& first);
    // How many completions; negative: the completion queue is lost.
    int poll(std::span<deft_verbs_wc_t> out);

private:
    VerbsQueuePair(std::shared_ptr<VerbsDomain> domain, const Options& options)
        : domain_(std::move(domain)), options_(options) {}
    bool create(std::string& problem);
    bool describe(std::string& problem);
    int to_init();
    int agree(const VerbsAddress& peer);
    int to_receive(const VerbsAddress& peer);
    int to_send();
    void connect_now(const VerbsAddress& peer);
    void connect_locked(const VerbsAddress& peer) DEFT_REQUIRES(connecting_);
    void begin_end();
    void end_now();
    void end_locked() DEFT_REQUIRES(connecting_);
    void fail(const char* what, int error);

    const std::shared_ptr<VerbsDomain> domain_;
    const Options options_;
    deft_verbs_cq_t* cq_ = nullptr;
    deft_verbs_qp_t* qp_ = nullptr;
    VerbsAddress own_;
    int mtu_ = DEFT_VERBS_MTU_256;
    std::size_t largest_message_ = 0;
    bool global_ = false;  // packets carry GIDs
    std::string why_;      // written before state_
    std::atomic<State> state_{State::Made};
    std::atomic<bool> lost_{false};
    std::atomic<bool> hopeless_{false};  // to be destroyed
    Mutex connecting_;                   // held while one of the two is inside of the driver
};

const char* name_of(VerbsQueuePair::State state);

}  // namespace deft::net
