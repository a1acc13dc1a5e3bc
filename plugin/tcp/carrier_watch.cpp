// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/carrier_watch.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "plugin/core/clock.h"

namespace deft::net {
namespace {

constexpr Nanos kInterval = 2 * kMillisecond;
constexpr std::size_t kManyEntries = 64;

// Events are rare: what they said is kept under a lock, and while there was none nobody takes it.
class Watch {
public:
    Carrier of(const std::string& name) { return look(name).carrier; }
    bool down(const std::string& name) { return look(name).down; }

private:
    struct Entry {
        std::string name;
        bool down = false;
        bool wanted = false;  // somebody has asked for it
        Carrier carrier;
    };

    Entry look(const std::string& name) {
        if (made_by_ != ::getpid()) {
            return {};  // the socket is the parent's: timers have to notice
        }
        const Nanos now = steady_now();
        if (now >= next_.load(std::memory_order_relaxed)) {
            if (mutex_.try_lock()) {
                const MutexLock lock(mutex_, std::adopt_lock);
                next_.store(now + kInterval, std::memory_order_relaxed);
                read();
            }
        }
        if (known_.load(std::memory_order_acquire) == 0) {
            return {};
        }
        const MutexLock lock(mutex_);
        Entry* const entry = find(name);
        if (entry == nullptr) {
            return {};
        }
        entry->wanted = true;
        return *entry;
    }

    Entry* find(const std::string& name) DEFT_REQUIRES(mutex_) {
        const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                        [&](const Entry& each) { return each.name == name; });
        return entry == entries_.end() ? nullptr : &*entry;
    }

    Entry& find_or_add(const std::string& name) DEFT_REQUIRES(mutex_) {
        if (Entry* const entry = find(name)) {
            return *entry;
        }
        // On a host with containers interfaces come and go for ever.
        if (entries_.size() >= kManyEntries) {
            std::erase_if(entries_, [](const Entry& entry) { return !entry.wanted; });
        }
        entries_.push_back(Entry{name, false, false, {}});
        known_.store(entries_.size(), std::memory_order_release);
        return entries_.back();
    }

    void report(const std::string& name, bool running) DEFT_REQUIRES(mutex_) {
        if (running && find(name) == nullptr) {
            return;
        }
        Entry& entry = find_or_add(name);
        if (entry.down == running) {
            ++(running ? entry.carrier.gained : entry.carrier.lost);
            entry.down = entry.carrier.down = !running;
        }
    }

    static bool running(const ifaddrs& entry) {
        return (entry.ifa_flags & IFF_UP) != 0 && (entry.ifa_flags & IFF_RUNNING) != 0;
    }

    // So that their first carrier is one gained.
    void note_those_down() DEFT_REQUIRES(mutex_) {
        ifaddrs* list = nullptr;
        if (getifaddrs(&list) != 0) {
            return;
        }
        for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
            if (!running(*entry)) {
                Entry& known = find_or_add(entry->ifa_name);
                known.down = true;
                known.carrier.down = static_cast<bool>(fd_);  // or nobody would take it back
            }
        }
        freeifaddrs(list);
    }

    // Events were dropped. What has come and gone since is not known; what holds now is.
    void look_at_all() DEFT_REQUIRES(mutex_) {
        ifaddrs* list = nullptr;
        if (getifaddrs(&list) != 0) {
            return;
        }
        missed_ = false;
        for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
            report(entry->ifa_name, running(*entry));
        }
        for (const Entry& known : entries_) {
            const ifaddrs* entry = list;
            while (entry != nullptr && known.name != entry->ifa_name) {
                entry = entry->ifa_next;
            }
            if (entry == nullptr) {
                report(known.name, false);
            }
        }
        freeifaddrs(list);
    }

    void read() DEFT_REQUIRES(mutex_) {
        if (!open_) {
            open_ = true;
            fd_ = UniqueFd(
                socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
            sockaddr_nl address{};
            address.nl_family = AF_NETLINK;
            address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
            if (fd_ &&
                bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
                fd_.reset();
            }
            note_those_down();
        }
        if (!fd_) {
            return;  // timers alone have to notice
        }
        alignas(nlmsghdr) char buffer[8192];
        for (;;) {
            const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
            if (got < 0 && errno == ENOBUFS) {
                missed_ = true;
                continue;
            }
            if (got <= 0) {
                break;
            }
            auto left = static_cast<unsigned>(got);
            for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
                 message = NLMSG_NEXT(message, left)) {
                event(*message);
            }
        }
        if (missed_) {  // after all that was not dropped
            look_at_all();
        }
    }

    // An interface that was made anew, or lost its addresses while it was down, is of no use before
    // it has one.
    void address(const nlmsghdr& message) DEFT_REQUIRES(mutex_) {
        if (message.nlmsg_len < NLMSG_LENGTH(sizeof(ifaddrmsg))) {
            return;
        }
        const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(&message));
        std::array<char, IF_NAMESIZE> name{};
        // An IPv6 address is announced again once it may be used.
        if ((info->ifa_flags & IFA_F_TENTATIVE) == 0 &&
            if_indextoname(info->ifa_index, name.data()) != nullptr) {
            ++find_or_add(name.data()).carrier.gained;
        }
    }

    void event(const nlmsghdr& message) DEFT_REQUIRES(mutex_) {
        if (message.nlmsg_type == RTM_NEWADDR) {
            address(message);
            return;
        }
        if ((message.nlmsg_type != RTM_NEWLINK && message.nlmsg_type != RTM_DELLINK) ||
            message.nlmsg_len < NLMSG_LENGTH(sizeof(ifinfomsg))) {
            return;
        }
        const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
        if (info->ifi_family != AF_UNSPEC) {  // a bridge's view of its ports
            return;
        }
        auto left = static_cast<unsigned>(message.nlmsg_len - NLMSG_LENGTH(sizeof(ifinfomsg)));
        for (const rtattr* attribute = IFLA_RTA(info); RTA_OK(attribute, left);
             attribute = RTA_NEXT(attribute, left)) {
            if (attribute->rta_type == IFLA_IFNAME) {
                const auto* text = static_cast<const char*>(RTA_DATA(attribute));
                const std::string name(text, strnlen(text, RTA_PAYLOAD(attribute)));
                const bool running = message.nlmsg_type == RTM_NEWLINK &&
                                     (info->ifi_flags & IFF_UP) != 0 &&
                                     (info->ifi_flags & IFF_RUNNING) != 0;
                report(name, running);
            }
        }
    }

    const pid_t made_by_ = ::getpid();
    Mutex mutex_;
    std::atomic<Nanos> next_{0};
    std::atomic<std::size_t> known_{0};
    std::vector<Entry> entries_ DEFT_GUARDED_BY(mutex_);
    bool open_ DEFT_GUARDED_BY(mutex_) = false;
    bool missed_ DEFT_GUARDED_BY(mutex_) = false;
    UniqueFd fd_ DEFT_GUARDED_BY(mutex_);
};

Watch& the_watch() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static Watch& watch = *new Watch;
    return watch;
}

}  // namespace

Carrier CarrierWatch::of(const std::string& name) {
    return the_watch().of(name);
}

bool CarrierWatch::down(const std::string& name) {
    return the_watch().down(name);
}

}  // namespace deft::net
