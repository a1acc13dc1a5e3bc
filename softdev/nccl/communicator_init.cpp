// SPDX-License-Identifier: Apache-2.0
// How a communicator comes into being: by unique id, or from a parent.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/communicator.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"
#include "softdev/net/logger.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

// Keys of the all-gathers on the control connections.
constexpr uint64_t kGatherPeers = 1;
constexpr uint64_t kGatherReady = 2;
constexpr uint64_t kGatherSplit = 1ull << 32;
constexpr uint64_t kGatherShrink = 2ull << 32;
constexpr uint64_t kGatherGrow = 3ull << 32;

struct Networks {
    int32_t devices;  // that carry a rank's channels
    int32_t mbits;    // a second, of all of them
};

struct PeerInfo {
    uint64_t host;
    char bus[32];
    int32_t version;
    int32_t min_ctas;
    int32_t max_ctas;
    int32_t asked_per_peer;  // connections to each peer for messages; 0: as many as are good
    Networks networks;
};

struct ChildInfo {
    int32_t color;
    int32_t order;
    Address control;
};

template <class T>
std::string blob_of(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T from_blob(const std::string& blob) {
    T value{};
    std::memcpy(&value, blob.data(), std::min(blob.size(), sizeof value));
    return value;
}

UniqueFd listen_control(Address& address) {
    address = bootstrap_interface().address;
    address.v4.sin_port = 0;
    return listen_on(address);
}

// Channels as NCCL bounds them: two for each network device, within [min, max] of configuration and
// environment.
int wanted_channels(int networks, int min_ctas, int max_ctas) {
    const int64_t low = env_int("NCCL_MIN_NCHANNELS", env_int("NCCL_MIN_NRINGS", 1));
    const int64_t high = env_int("NCCL_MAX_NCHANNELS", env_int("NCCL_MAX_NRINGS", 64));
    const int64_t asked = std::clamp<int64_t>(
        std::max<int64_t>(2 * networks, std::max<int64_t>(low, min_ctas)), 1, 64);
    return static_cast<int>(
        std::clamp<int64_t>(std::min<int64_t>(asked, std::min<int64_t>(high, max_ctas)), 1, 64));
}

// Since 2.30: one for each network device or each 14 GB/s, and fewer where peers are so many that
// their messages, eight of a channel at a time, do not find room.
int channels_by_bandwidth(int asked, int all, const Networks& networks, int nranks) {
    constexpr int kMbitsOfAChannel = 14 * 8 * 1000;
    constexpr int kMessagesOfAChannel = 8;
    const int wanted = asked > 0
                           ? asked
                           : std::max(networks.devices,
                                      (networks.mbits + kMbitsOfAChannel - 1) / kMbitsOfAChannel);
    auto each = static_cast<int>(std::bit_ceil(static_cast<unsigned>(wanted)));
    if (asked > 0) {
        return std::min(all, each);
    }
    const int rounds = (nranks + kMessagesOfAChannel - 1) / kMessagesOfAChannel;
    while (each > 1 && each * rounds > all) {
        each /= 2;
    }
    return each;
}

// Connections to each peer for messages, of all channels there are: unless told otherwise two,
// fewer where there are many peers, and enough for all network devices. A power of two, as in NCCL.
int channels_for_messages(int asked, int channels, const Networks& networks, int nranks) {
    const auto all = static_cast<int>(std::bit_ceil(static_cast<unsigned>(channels)));
    if (nccl_version() >= 23000) {
        return channels_by_bandwidth(asked, all, networks, nranks);
    }
    if (asked <= 0) {
        const bool many = 2 * nranks > 4 * channels;
        asked = std::max(networks.devices, many ? 1 : 2);
    }
    const int wanted = std::min(asked, channels);
    return std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(wanted))), all);
}

}  // namespace

void Communicator::use_current_device() {
    CUcontext current = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxGetCurrent(&current) != CUDA_SUCCESS) {
        throw Error(ncclUnhandledCudaError, "Cuda failure 'no CUDA-capable device is detected'");
    }
    if (current == nullptr) {
        // As the runtime does for a thread that has chosen no device: the primary context of device
        // 0.
        CUdevice first = 0;
        if (cuDeviceGet(&first, 0) != CUDA_SUCCESS ||
            cuDevicePrimaryCtxRetain(&current, first) != CUDA_SUCCESS ||
            cuCtxSetCurrent(current) != CUDA_SUCCESS) {
            throw Error(ncclUnhandledCudaError,
                        "Cuda failure 'no CUDA-capable device is detected'");
        }
    }
    CUdevice now = 0;
    if (cuCtxGetDevice(&now) != CUDA_SUCCESS) {
        throw Error(ncclUnhandledCudaError, "Cuda failure 'invalid device context'");
    }
    context = current;
    device = now;
}

void Communicator::meet(UniqueFd listener, const std::vector<Address>& addresses, uint64_t magic) {
    auto control = std::make_unique<Control>(rank, nranks, magic, &abort_);
    {
        std::lock_guard lock(parts_mutex_);
        control_ = std::move(control);
    }
    check_ = std::make_unique<CallCheck>(
        rank, nranks, control_.get(),
        [this](const std::string& text) { fail(ncclInvalidUsage, text, true); });
    control_->meet(std::move(listener), addresses, patience());
    control_->start({[this](int peer, Letter type, uint64_t key, std::string payload) {
                         letter(peer, type, key, payload);
                     },
                     [this](int peer, bool clean) { peer_lost(peer, clean); }});
}

void Communicator::exchange_peers() {
    PeerInfo own{};
    own.host = host_hash();
    own.version = nccl_version();
    own.min_ctas = config.min_ctas;
    own.max_ctas = config.max_ctas;
    own.asked_per_peer =
        static_cast<int32_t>(env_int("NCCL_NCHANNELS_PER_NET_PEER", config.channels_per_net_peer));
    if (cuDeviceGetPCIBusId(own.bus, sizeof own.bus, device) != CUDA_SUCCESS) {
        std::snprintf(own.bus, sizeof own.bus, "device %d", device);
    }
    own.networks = {static_cast<int32_t>(resources_->devices.size()), resources_->mbits};
    const auto blobs = control_->all_gather(kGatherPeers, blob_of(own), patience(),
                                            "exchange of peer information");
    std::vector<PeerInfo> peers;
    int most = 64;
    int least = 1;
    int per_peer = 64;
    Networks networks{64, INT32_MAX};
    for (const std::string& blob : blobs) {
        const PeerInfo& peer = peers.emplace_back(from_blob<PeerInfo>(blob));
        // Every rank must come to the same number.
        most = std::min(most, peer.max_ctas);
        least = std::max(least, peer.min_ctas);
        per_peer = std::min(per_peer, peer.asked_per_peer);
        networks.devices = std::min(networks.devices, peer.networks.devices);
        networks.mbits = std::min(networks.mbits, peer.networks.mbits);
    }
    networks_ = networks.devices;
    channels = wanted_channels(networks_, least, most);
    p2p_channels = channels_for_messages(per_peer, channels, networks, nranks);
    for (int a = 0; a < nranks; ++a) {
        if (peers[a].version != own.version) {
            throw Error(
                ncclInvalidUsage,
                format("Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                       rank, own.version, a, peers[a].version));
        }
        for (int b = 0; b < a; ++b) {
            if (peers[a].host == peers[b].host && std::strcmp(peers[a].bus, peers[b].bus) == 0) {
                throw Error(
                    ncclInvalidUsage,
                    format("Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", b,
                           a, peers[a].bus));
            }
        }
    }
}

void Communicator::init(const std::vector<ncclUniqueId>& ids) {
    log_set_device(device);
    cuCtxSetCurrent(context);
    hash = hash_bytes(&ids[0], sizeof ids[0]);
    const IdHead head = read_id(ids[0]);
    log_info(kSubsysInit,
             "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init START",
             static_cast<void*>(handle), rank, nranks, device,
             static_cast<unsigned long long>(hash));
    if (rank == 0) {
        start_root_for_rank0(ids[0]);
    }
    top_ranks.resize(static_cast<size_t>(nranks));
    std::iota(top_ranks.begin(), top_ranks.end(), 0);
    Address own{};
    UniqueFd listener = listen_control(own);
    const auto addresses = check_in(ids, nranks, rank, own, patience());
    meet(std::move(listener), addresses, head.magic);
    open_network(nullptr);  // whatever a single rank wants of it: as in NCCL
    open_tuner();
    exchange_peers();
    if (nranks > 1) {
        control_->all_gather(kGatherReady, "", patience(), "end of the initialisation");
    }
    log_info(kSubsysInit,
             "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init COMPLETE",
             static_cast<void*>(handle), rank, nranks, device,
             static_cast<unsigned long long>(hash));
}

// The child lives on this one's network context.
void Communicator::check_shared_network(const Communicator& child) const {
    if (!child.config.net_name.empty() && child.config.net_name != config.net_name) {
        throw Error(ncclInvalidUsage,
                    format("a communicator that shares resources cannot use net %s (parent: %s)",
                           child.config.net_name.c_str(), config.net_name.c_str()));
    }
    if (child.config.traffic_class != config.traffic_class) {
        log_info(kSubsysInit, "trafficClass %d of a communicator that shares resources is ignored",
                 child.config.traffic_class);
    }
}

ncclUniqueId Communicator::share_id(const ncclUniqueId* own, uint64_t number) {
    const auto blobs = control_->all_gather(
        kGatherGrow + number, own != nullptr ? blob_of(*own) : "", patience(), "ncclCommGrow");
    for (const std::string& blob : blobs) {
        if (!blob.empty()) {
            return from_blob<ncclUniqueId>(blob);
        }
    }
    throw Error(ncclInvalidArgument, "ncclCommGrow : no rank of the communicator gives the id");
}

void Communicator::derive(const Derivation& wanted, const std::shared_ptr<Communicator>& child) {
    log_set_device(device);
    cuCtxSetCurrent(context);
    ChildInfo own{wanted.color, wanted.order, {}};
    UniqueFd listener = listen_control(own.control);
    const char* what = wanted.shrink ? "ncclCommShrink" : "ncclCommSplit";
    std::vector<std::string> blobs;
    check_->entering(what);
    try {
        blobs = control_->all_gather((wanted.shrink ? kGatherShrink : kGatherSplit) + wanted.number,
                                     blob_of(own), wanted.who, patience(), what);
        check_->entering("");
    } catch (const Error& error) {
        std::string text = name() + ": " + error.what();
        if (error.code() == ncclRemoteError) {
            text += "; " + describe_stall();
            softdevReportOn(device, "nccl: %s", text.c_str());
        }
        check_->entering("");
        throw Error(error.code(), text);
    }
    if (child == nullptr) {
        return;
    }
    struct Member {
        int order;
        int parent_rank;
        Address control;
        auto key() const { return std::pair(order, parent_rank); }
    };
    std::vector<Member> members;
    for (size_t i = 0; i < blobs.size(); ++i) {
        const auto info = from_blob<ChildInfo>(blobs[i]);
        if (info.color == wanted.color) {
            members.push_back({info.order, wanted.who[i], info.control});
        }
    }
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.key() < b.key(); });
    int child_rank = 0;
    std::vector<Address> addresses;
    std::vector<int> tops;
    for (size_t i = 0; i < members.size(); ++i) {
        child_rank = members[i].parent_rank == rank ? static_cast<int>(i) : child_rank;
        addresses.push_back(members[i].control);
        tops.push_back(top_ranks[members[i].parent_rank]);
    }
    child->rank = child_rank;
    child->nranks = static_cast<int>(members.size());
    child->handle->rank = child->rank;
    child->handle->nranks = child->nranks;
    child->top_ranks = std::move(tops);
    const uint64_t seed[4] = {hash, wanted.number, static_cast<uint64_t>(wanted.color),
                              wanted.shrink ? 1u : 0u};
    child->hash = hash_bytes(seed, sizeof seed);
    child->meet(std::move(listener), addresses, child->hash);
    if (child->nranks > 1 && wanted.share) {
        check_shared_network(*child);
    }
    child->open_network(wanted.share ? resources_ : nullptr);
    child->open_tuner();
    child->exchange_peers();
    if (child->nranks > 1) {
        child->control_->all_gather(kGatherReady, "", child->patience(), what);
    }
    log_info(kSubsysInit, "%s comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init COMPLETE",
             what, static_cast<void*>(child->handle), child->rank, child->nranks, device,
             static_cast<unsigned long long>(child->hash));
}

}  // namespace softdev::nccl
