// SPDX-License-Identifier: Apache-2.0
// The processes that this one relays for: which of their ranks is behind which connection.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/agreement/core.h"
#include "shim/agreement/link.h"
#include "shim/agreement/listener.h"

namespace deft::agreement {

// Where the processes of this host, which have one user and one network namespace, find the relay
// to the leader of that process number. An abstract socket: the kernel lets only one process have
// it, and frees it when that process ends.
std::string relay_name(std::uint64_t leader_process);
// Connected to it, by a process of the same user. None: errno says why.
UniqueFd call_relay(const std::string& name);

class Neighbours final : public LinkOwner {
public:
    explicit Neighbours(Links& links) : door_(*this), links_(links) {}
    Neighbours(const Neighbours&) = delete;
    ~Neighbours();

    // This process relays from now on. False, and errno, if another one does, or it cannot be.
    bool serve(const std::string& name);
    // And for other hosts, which know the secret that `offer` gets, and its addresses. False: no
    // address to listen on.
    bool serve_hosts(wire::Trailer& offer);
    bool serving() const { return static_cast<bool>(door_.fd); }
    void stop();

    // The way to the leader is open, or not any more: then everybody has to find another one.
    void way_opened(Link& up);
    void way_lost();
    // Passes on a frame of the leader's.
    void pass_down(const wire::Header& header, std::span<const std::byte> whole);
    // Passes on what has come already.
    void drain();
    // Keeps in touch with them: who hears nothing for kSilence looks for another way.
    void step(Clock::time_point now);
    Clock::time_point due() const;
    void overslept(Clock::duration slept);
    bool empty() const { return downs_.empty(); }

    bool take(Link& link, const wire::Header& header, std::span<const std::byte> payload) override;
    void ended(Link& link, const std::string& how) override;

private:
    using Rank = std::pair<std::uint64_t, std::uint32_t>;  // its council, and its number there
    struct Door final : Watcher {
        explicit Door(Neighbours& owner, int listening = -1) : owner(owner), listening(listening) {}
        void ready(std::uint32_t events, Clock::time_point now) override;
        Neighbours& owner;
        UniqueFd fd;    // of this host's processes
        int listening;  // of other hosts
    };
    struct Down {
        std::unique_ptr<Link> link;
        std::set<Rank> ranks;
        std::map<std::uint64_t, int> councils;  // and how many ranks of each
    };
    // Of another host, and has yet to say the secret.
    struct Stranger {
        Link* link;
        Clock::time_point since;
        Address from;
    };

    Door door_;
    std::unique_ptr<Listener> hosts_;
    std::deque<Door> host_doors_;
    wire::Nonce secret_{};
    Links& links_;
    Link* up_ = nullptr;
    std::unordered_map<Link*, Down> downs_;
    std::vector<Stranger> strangers_;          // of them, in order of arrival
    Clock::time_point let_in_again_ = kNever;  // the kernel had no memory: so long nobody
    std::map<Rank, Link*> routes_;
    bool held_ = false;
    Clock::time_point next_beat_{};

    void let_in(int door, bool neighbour);
    UniqueFd accept_one(int door, Address& from);
    void welcome(UniqueFd fd, bool neighbour, const Address& from);
    void open_doors(bool open);
    bool stranger(const Link& link) const;
    bool admit(Link& link, const wire::Header& header, std::span<const std::byte> payload);
    void close_doors();
    void hold(bool held);
    void say_ready();
    void forget(Down& down, const Rank& rank);
    bool introduce(Down& down, const Rank& rank, std::span<const std::byte> payload);
};

}  // namespace deft::agreement
