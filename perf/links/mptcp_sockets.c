/* SPDX-License-Identifier: Apache-2.0
 * Preloaded into a program, makes its TCP sockets MPTCP ones, as mptcpize of the mptcpd project
 * does: a way to run a transport that knows nothing of MPTCP over it. A measuring aid, not part of
 * the product. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

int socket(int family, int type, int protocol) {
    static int (*next)(int, int, int);
    if (next == 0) {
        *(void**)&next = dlsym(RTLD_NEXT, "socket");
    }
    const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if ((family == AF_INET || family == AF_INET6) && kind == SOCK_STREAM &&
        (protocol == 0 || protocol == IPPROTO_TCP)) {
        const int fd = next(family, type, IPPROTO_MPTCP);
        if (fd >= 0) {
            return fd;
        }
    }
    return next(family, type, protocol);
}
