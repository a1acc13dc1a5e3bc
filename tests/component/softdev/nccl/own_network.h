// SPDX-License-Identifier: Apache-2.0
// A network namespace of the process's own with two interfaces, eth0 and eth1, each in a network of
// its own.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace softdev::test {

// Namespaces of the network are for root: the program starts again as root of a user namespace.
inline bool enter_own_network(char** arguments) {
    if (geteuid() != 0) {
        if (std::getenv("SOFTNCCL_TEST_INSIDE") != nullptr) {
            return false;
        }
        setenv("SOFTNCCL_TEST_INSIDE", "1", 1);
        std::vector<const char*> command = {"unshare", "-Urn", "--"};
        for (; *arguments != nullptr; ++arguments) {
            command.push_back(*arguments);
        }
        command.push_back(nullptr);
        execvp(command[0], const_cast<char**>(command.data()));
        return false;
    }
    // The kernel says a moment later that a link is up; a program may look before.
    static const char commands[] = R"(
        ip link set lo up || exit 1
        for i in 0 1; do
            ip link add eth$i type veth peer name peer$i && ip link set peer$i up &&
            ip address add 192.0.$i.1/24 dev eth$i && ip link set eth$i up || exit 1
        done
        for i in 0 1; do
            tries=0
            until ip -o link show eth$i | grep -q 'state UP'; do
                tries=$((tries + 1))
                [ $tries -lt 1000 ] && sleep 0.01 || exit 1
            done
        done)";
    return unshare(CLONE_NEWNET) == 0 && std::system(commands) == 0;
}

}  // namespace softdev::test
