// SPDX-License-Identifier: Apache-2.0
#include "plugin/port_pairs.h"

#include <algorithm>

namespace deft::net {
namespace {

constexpr int kBitsPerByte = 8;

bool same_bits(const std::uint8_t* a, const std::uint8_t* b, int bits) {
    const auto whole = static_cast<std::size_t>(bits / kBitsPerByte);
    const int rest = bits % kBitsPerByte;
    return std::equal(a, a + whole, b) &&
           (rest == 0 || ((a[whole] ^ b[whole]) >> (kBitsPerByte - rest)) == 0);
}

// 0: cannot work; 1: through a router, if at all; 2: one network.
int score(const Port& own, const wire::Port& peer) {
    if (own.layer != peer.layer) {
        return 0;
    }
    if (own.prefix > 0 && same_bits(own.gid.raw, peer.gid.data(), own.prefix)) {
        return 2;
    }
    return own.layer == Port::Layer::InfiniBand ? 0 : 1;
}

class Pairing {
public:
    Pairing(const Ports& own, const wire::PortList& peer)
        : own_(own), peer_(peer), used_own_(own.size()), used_peer_(peer.count) {}

    PortPairs take() {
        for (const int wanted : {2, 1}) {
            take_free(wanted);
        }
        for (std::size_t o = 0; o < own_.size(); ++o) {
            share(o, peer_.count, used_own_[o], used_peer_);
        }
        for (std::size_t p = 0; p < peer_.count; ++p) {
            share(own_.size(), p, used_peer_[p], used_own_);
        }
        return std::move(pairs_);
    }

private:
    int score_of(std::size_t o, std::size_t p) const { return score(*own_[o], peer_.entries[p]); }

    void add(std::size_t o, std::size_t p) {
        pairs_.emplace_back(o, p);
        ++used_own_[o];
        ++used_peer_[p];
    }

    void take_free(int wanted) {
        for (std::size_t o = 0; o < own_.size(); ++o) {
            for (std::size_t p = 0; p < peer_.count; ++p) {
                if (used_own_[o] == 0 && used_peer_[p] == 0 && score_of(o, p) == wanted) {
                    add(o, p);
                }
            }
        }
    }

    // One side's port that is alone; the other's index is behind the end, and chosen here.
    void share(std::size_t o, std::size_t p, int used, const std::vector<int>& others) {
        if (used != 0) {
            return;
        }
        const bool own = o < own_.size();
        int best_score = 0;
        std::size_t best = 0;
        for (std::size_t i = 0; i < others.size(); ++i) {
            const int value = own ? score_of(o, i) : score_of(i, p);
            if (value > best_score ||
                (value == best_score && value > 0 && others[i] < others[best])) {
                best_score = value;
                best = i;
            }
        }
        if (best_score > 0) {
            own ? add(o, best) : add(best, p);
        }
    }

    const Ports& own_;
    const wire::PortList& peer_;
    std::vector<int> used_own_;
    std::vector<int> used_peer_;
    PortPairs pairs_;
};

}  // namespace

wire::PortList to_wire(const Ports& ports) {
    wire::PortList list;
    for (const auto& port : ports) {
        if (list.count == wire::kMaxPorts) {
            break;
        }
        wire::Port& entry = list.entries[list.count++];
        entry.layer = port->layer;
        std::copy(std::begin(port->gid.raw), std::end(port->gid.raw), entry.gid.begin());
    }
    return list;
}

PortPairs pair_ports(const Ports& own, const wire::PortList& peer, std::size_t most) {
    auto pairs = Pairing(own, peer).take();
    if (pairs.size() > most) {
        pairs.resize(most);
    }
    return pairs;
}

}  // namespace deft::net
