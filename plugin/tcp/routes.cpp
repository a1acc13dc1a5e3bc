// SPDX-License-Identifier: Apache-2.0
// Which link of ours is paired with which link of the peer.
#include <algorithm>
#include <array>

#include "plugin/tcp/tcp_dialer.h"

namespace deft::net {
namespace {

// The peer's link-local address is reached through our link.
std::pair<Address, wire::Endpoint> candidate(const Address& own, const wire::Endpoint& peer) {
    wire::Endpoint scoped = peer;
    scoped.address.scope = scoped.address.link_local() ? own.scope : 0;
    return {own, scoped};
}

// 0: cannot work; 1: through routers, if at all; 2: the very same address (links of one host named
// by address) or the same network.
int score(const Address& own, const wire::Endpoint& peer) {
    if (own.family != peer.address.family || own.loopback() != peer.address.loopback()) {
        return 0;
    }
    if (own.link_local() != peer.address.link_local()) {
        return 0;
    }
    if (own.link_local()) {
        return own == peer.address ? 2 : 1;  // every link has the same network
    }
    return own == peer.address || own.same_network(peer.address) ? 2 : 1;
}

struct Pair {
    int score = 0;
    const Address* own = nullptr;
    const wire::Endpoint* peer = nullptr;
};

// The best way from one of our links to one of the peer's.
Pair best_pair(const Interface& link, const wire::EndpointList& endpoints, std::size_t remote) {
    Pair best;
    for (const Address& own : link.addresses) {
        for (std::size_t i = 0; i < endpoints.count; ++i) {
            const wire::Endpoint& peer = endpoints.entries[i];
            const int value = peer.link == remote ? score(own, peer) : 0;
            if (value > best.score) {
                best = {value, &own, &peer};
            }
        }
    }
    return best;
}

// Every other way from this link of ours to that of the peer's: another address, or the other
// family where one of them does not get through.
void add_ways(const Interface& link, const wire::EndpointList& endpoints, std::size_t remote,
              const Pair& known, Route& route) {
    for (const int wanted : {2, 1}) {
        for (const Address& own : link.addresses) {
            for (std::size_t i = 0; i < endpoints.count; ++i) {
                const wire::Endpoint& peer = endpoints.entries[i];
                if (peer.link == remote && (&own != known.own || &peer != known.peer) &&
                    score(own, peer) == wanted) {
                    route.candidates.push_back(candidate(own, peer));
                }
            }
        }
    }
}

bool among(const std::vector<Address>& list, const Address& address) {
    return std::find(list.begin(), list.end(), address) != list.end();
}

// Which link of ours goes with which link of the peer's.
class Matching {
public:
    // `allowed`: of ours, and of the peer's.
    template <typename Allowed>
    Matching(const std::vector<Interface>& links, const wire::EndpointList& endpoints,
             const Allowed& allowed)
        : links_(links), endpoints_(endpoints), locals_(std::min(links.size(), wire::kMaxLinks)) {
        for (std::size_t i = 0; i < endpoints.count; ++i) {
            remotes_ = std::max<std::size_t>(remotes_, endpoints.entries[i].link + std::size_t{1});
        }
        for (std::size_t l = 0; l < locals_; ++l) {
            for (std::size_t r = 0; r < remotes_; ++r) {
                pairs_[l][r] = allowed(l, r) ? best_pair(links[l], endpoints, r) : Pair{};
            }
        }
    }

    // Links of one network first, each once, of equal position before others; then what is left.
    void take_each_once() {
        for (const int wanted : {2, 1}) {
            take_free(wanted, true);
            take_free(wanted, false);
        }
    }

    // A side with more links than the other: its remaining ones share the other's least used.
    void share_least_used() {
        for (std::size_t l = 0; l < locals_; ++l) {
            const std::size_t best = used_local_[l] == 0 ? best_remote(l) : remotes_;
            if (best < remotes_) {
                take(l, best);
            }
        }
        for (std::size_t r = 0; r < remotes_; ++r) {
            const std::size_t best = used_remote_[r] == 0 ? best_local(r) : locals_;
            if (best < locals_) {
                take(best, r);
            }
        }
    }

    std::vector<Route> routes() const {
        std::vector<Route> routes;
        for (const auto& [l, r] : chosen_) {
            if (routes.size() == wire::kMaxPaths) {
                break;
            }
            routes.push_back(route(l, r));
        }
        return routes;
    }

private:
    void take(std::size_t l, std::size_t r) {
        chosen_.emplace_back(l, r);
        ++used_local_[l];
        ++used_remote_[r];
    }

    void take_free(int wanted, bool same_position) {
        for (std::size_t l = 0; l < locals_; ++l) {
            for (std::size_t r = 0; r < remotes_; ++r) {
                if (used_local_[l] == 0 && used_remote_[r] == 0 && pairs_[l][r].score == wanted &&
                    (!same_position || l == r)) {
                    take(l, r);
                }
            }
        }
    }

    std::size_t best_remote(std::size_t l) const {
        std::size_t best = remotes_;
        for (std::size_t r = 0; r < remotes_; ++r) {
            if (pairs_[l][r].score == 0) {
                continue;
            }
            if (best == remotes_ || pairs_[l][r].score > pairs_[l][best].score ||
                (pairs_[l][r].score == pairs_[l][best].score &&
                 used_remote_[r] < used_remote_[best])) {
                best = r;
            }
        }
        return best;
    }

    std::size_t best_local(std::size_t r) const {
        std::size_t best = locals_;
        for (std::size_t l = 0; l < locals_; ++l) {
            if (pairs_[l][r].score == 0) {
                continue;
            }
            if (best == locals_ || pairs_[l][r].score > pairs_[best][r].score ||
                (pairs_[l][r].score == pairs_[best][r].score &&
                 used_local_[l] < used_local_[best])) {
                best = l;
            }
        }
        return best;
    }

    Route route(std::size_t l, std::size_t r) const {
        Route route;
        route.link = l;
        route.candidates.push_back(candidate(*pairs_[l][r].own, *pairs_[l][r].peer));
        for (const int wanted : {2, 1}) {
            for (std::size_t other = 0; other < remotes_; ++other) {
                if (other != r && pairs_[l][other].score == wanted) {
                    route.candidates.push_back(
                        candidate(*pairs_[l][other].own, *pairs_[l][other].peer));
                }
            }
        }
        add_ways(links_[l], endpoints_, r, pairs_[l][r], route);
        return route;
    }

    const std::vector<Interface>& links_;
    const wire::EndpointList& endpoints_;
    const std::size_t locals_;
    std::size_t remotes_ = 0;
    std::array<std::array<Pair, wire::kMaxLinks>, wire::kMaxLinks> pairs_;
    std::vector<std::pair<std::size_t, std::size_t>> chosen_;
    std::array<int, wire::kMaxLinks> used_local_{};
    std::array<int, wire::kMaxLinks> used_remote_{};
};

}  // namespace

bool drop_doubles(const std::vector<Address>& host, std::vector<Interface>& links,
                  wire::EndpointList& endpoints) {
    const auto own = [&](const wire::Endpoint& endpoint) {
        return endpoint.address.loopback() || among(host, endpoint.address);
    };
    auto* const begin = endpoints.entries.data();
    auto* const end = begin + endpoints.count;
    if (std::all_of(begin, end, own)) {
        return true;
    }
    std::vector<Address> doubled;
    std::for_each(begin, end, [&](const wire::Endpoint& endpoint) {
        if (own(endpoint)) {
            doubled.push_back(endpoint.address);
        }
    });
    endpoints.count = static_cast<std::size_t>(std::remove_if(begin, end, own) - begin);
    for (Interface& link : links) {
        std::erase_if(link.addresses,
                      [&](const Address& address) { return among(doubled, address); });
    }
    return false;
}

void thin_out(std::vector<Route>& routes, const std::vector<Interface>& links, std::size_t most,
              std::size_t first) {
    if (routes.size() <= most) {
        return;
    }
    std::rotate(routes.begin(), routes.begin() + static_cast<std::ptrdiff_t>(first % routes.size()),
                routes.end());
    std::stable_sort(routes.begin(), routes.end(), [&](const Route& a, const Route& b) {
        return links[a.link].nominal_speed() > links[b.link].nominal_speed();
    });
    routes.resize(most);
}

std::vector<Route> plan_routes(const std::vector<Interface>& links,
                               const wire::EndpointList& endpoints, std::size_t first_reserve) {
    const auto kept_back = [&](std::size_t remote) {
        return first_reserve != 0 && remote >= first_reserve;
    };
    Matching matching(links, endpoints, [&](std::size_t own, std::size_t remote) {
        return !links[own].reserve && !kept_back(remote);
    });
    matching.take_each_once();
    matching.share_least_used();
    std::vector<Route> routes = matching.routes();
    Matching reserves(links, endpoints, [&](std::size_t own, std::size_t remote) {
        return links[own].reserve || kept_back(remote);
    });
    reserves.take_each_once();
    const std::vector<Route> behind = routes.empty() ? std::vector<Route>{} : reserves.routes();
    for (const Route& route : behind) {
        if (routes.size() < wire::kMaxPaths) {
            routes.push_back(route);
            routes.back().reserve = true;
        }
    }
    return routes;
}

}  // namespace deft::net
