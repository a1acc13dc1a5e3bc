// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/rules_close.h"

#include <sched.h>

#include <array>
#include <memory>

#include "softdev/net/rules_driver.h"

namespace softdev::net {
namespace {

using Kind = Stream::Kind;

void still_works(Side& side) {
    Connections made = side.connect(1, 1);
    {
        Stream send(*side.net.net(), made.send[0], Kind::Send, 4, 4096);
        Stream receive(*side.net.net(), made.receive[0], Kind::Receive, 4, 4096);
        send.begin(20);
        receive.begin(20);
        run_streams(std::array{&send, &receive}, {}, side.patience());
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

// Registered memory with requests on it that nobody waits for.
struct Abandoned {
    std::vector<char> memory = std::vector<char>(8 << 20);
    void* mhandle = nullptr;
    void* requests[8] = {};
    int posted = 0;

    void post(Net& net, void* comm, bool sends) {
        check(net.reg_mr(comm, memory.data(), memory.size(), DEFT_NET_PTR_HOST, &mhandle), net,
              "regMr");
        for (int i = 0; i < 8; ++i) {
            char* slot = memory.data() + (static_cast<size_t>(i) << 20);
            if (sends) {
                check(net.isend(comm, slot, 1 << 20, 0, mhandle, nullptr, &requests[i]), net,
                      "isend");
            } else {
                void* data[1] = {slot};
                size_t sizes[1] = {1 << 20};
                int tags[1] = {0};
                void* mhandles[1] = {mhandle};
                void* phandles[1] = {nullptr};
                check(net.irecv(comm, 1, data, sizes, tags, mhandles, phandles, &requests[i]), net,
                      "irecv");
            }
            if (requests[i] == nullptr) {
                break;
            }
            ++posted;
        }
        for (int pass = 0, done = 0; pass < 50 && posted > 0 && done == 0; ++pass) {
            check(net.test(requests[0], &done, nullptr), net, "test");
            if (done != 0) {
                requests[0] = nullptr;
            }
        }
    }
};

}  // namespace

// connect may be done or not before accept is called; polling it must not fail.
void late_accept(Side& side) {
    Net& net = *side.net.net();
    Handle handle{};
    void* comm = nullptr;
    DeviceHandle* device_handle = nullptr;
    if (side.index == 1) {
        void* listen_comm = nullptr;
        check(net.listen(side.net.context(), 0, handle.data(), &listen_comm), net, "listen");
        side.peer.exchange({handle});
        side.peer.barrier();  // the connects below were all before this
        const Deadline deadline = after_seconds(side.options.patience_s);
        while (comm == nullptr) {
            check(net.accept(listen_comm, &comm, &device_handle), net, "accept");
            if (std::chrono::steady_clock::now() > deadline) {
                throw DriveError("accept never gave a comm");
            }
            sched_yield();
        }
        check(net.close_listen(listen_comm), net, "closeListen");
        side.peer.barrier();
        check(net.close_recv(comm), net, "closeRecv");
    } else {
        handle = side.peer.exchange({}).at(0);
        for (int i = 0; i < 1000 && comm == nullptr; ++i) {
            check(net.connect(side.net.context(), 0, handle.data(), &comm, &device_handle), net,
                  "connect");
        }
        side.peer.barrier();
        const Deadline deadline = after_seconds(side.options.patience_s);
        while (comm == nullptr) {
            check(net.connect(side.net.context(), 0, handle.data(), &comm, &device_handle), net,
                  "connect");
            if (std::chrono::steady_clock::now() > deadline) {
                throw DriveError("connect never gave a comm");
            }
            sched_yield();
        }
        side.peer.barrier();
        check(net.close_send(comm), net, "closeSend");
    }
}

// Listen comms closed with no accept call, and after some; handles nobody ever connects to.
void unused_listen_and_handle(Side& side) {
    Net& net = *side.net.net();
    for (int i = 0; i < 8; ++i) {
        Handle handle{};
        void* listen_comm = nullptr;
        check(net.listen(side.net.context(), i % side.net.devices(), handle.data(), &listen_comm),
              net, "listen");
        for (int k = 0; k < i; ++k) {
            void* comm = nullptr;
            DeviceHandle* device_handle = nullptr;
            check(net.accept(listen_comm, &comm, &device_handle), net, "accept");
            if (comm != nullptr) {
                throw DriveError("accept gave a comm though nobody connected");
            }
        }
        check(net.close_listen(listen_comm), net, "closeListen");
    }
    side.peer.barrier();
    still_works(side);
}

// The listener goes away before it accepts. The connecting side gets a comm, an error, or keeps
// polling; whichever it is, it can be left and the next connection works.
void unaccepted_connect(Side& side) {
    Net& net = *side.net.net();
    if (side.index == 1) {
        Handle handle{};
        void* listen_comm = nullptr;
        check(net.listen(side.net.context(), 0, handle.data(), &listen_comm), net, "listen");
        side.peer.exchange({handle});
        side.peer.barrier();
        check(net.close_listen(listen_comm), net, "closeListen");
        side.peer.barrier();
    } else {
        Handle handle = side.peer.exchange({}).at(0);
        void* comm = nullptr;
        DeviceHandle* device_handle = nullptr;
        int result = DEFT_NET_SUCCESS;
        for (int i = 0; i < 100 && comm == nullptr && result == DEFT_NET_SUCCESS; ++i) {
            result = net.connect(side.net.context(), 0, handle.data(), &comm, &device_handle);
        }
        side.peer.barrier();
        side.peer.barrier();
        for (int i = 0; i < 100 && comm == nullptr && result == DEFT_NET_SUCCESS; ++i) {
            result = net.connect(side.net.context(), 0, handle.data(), &comm, &device_handle);
        }
        if (comm != nullptr) {
            check(net.close_send(comm), net, "closeSend");
        }
    }
    still_works(side);
}

// An abort: both sides drop everything with eight requests outstanding.
void close_with_requests_in_flight(Side& side) {
    for (const bool sender_first : {true, false}) {
        Connections made = side.connect(1, 1);
        Abandoned sending;
        Abandoned receiving;
        sending.post(*side.net.net(), made.send[0], true);
        receiving.post(*side.net.net(), made.receive[0], false);
        side.peer.barrier();
        check(side.net->dereg_mr(made.send[0], sending.mhandle), *side.net.net(), "deregMr");
        check(side.net->dereg_mr(made.receive[0], receiving.mhandle), *side.net.net(), "deregMr");
        if (sender_first) {
            check(side.net->close_send(made.send[0]), *side.net.net(), "closeSend");
            check(side.net->close_recv(made.receive[0]), *side.net.net(), "closeRecv");
        } else {
            check(side.net->close_recv(made.receive[0]), *side.net.net(), "closeRecv");
            check(side.net->close_send(made.send[0]), *side.net.net(), "closeSend");
        }
        side.peer.barrier();
    }
    still_works(side);
}

// Side 1 leaves; side 0's requests end in an error and the comms can still be closed.
void peer_closes_first(Side& side) {
    Connections made = side.connect(1, 1);
    Net& net = *side.net.net();
    if (side.index == 1) {
        side.peer.barrier();
        close_all(side.net, &made);
        side.peer.barrier();
        side.peer.barrier();
        still_works(side);
        return;
    }
    side.peer.barrier();
    side.peer.barrier();
    for (const bool sends : {true, false}) {
        void* comm = sends ? made.send[0] : made.receive[0];
        std::vector<char> memory(1 << 20);
        void* mhandle = nullptr;
        check(net.reg_mr(comm, memory.data(), memory.size(), DEFT_NET_PTR_HOST, &mhandle), net,
              "regMr");
        // A receive must fail at once; sends are accepted until the kernel has heard of it.
        const Deadline deadline = after_seconds(side.options.patience_s);
        bool failed = false;
        while (!failed && std::chrono::steady_clock::now() < deadline) {
            void* request = nullptr;
            int result;
            if (sends) {
                result =
                    net.isend(comm, memory.data(), memory.size(), 0, mhandle, nullptr, &request);
            } else {
                void* data[1] = {memory.data()};
                size_t sizes[1] = {memory.size()};
                int tags[1] = {0};
                void* mhandles[1] = {mhandle};
                void* phandles[1] = {nullptr};
                result = net.irecv(comm, 1, data, sizes, tags, mhandles, phandles, &request);
            }
            int done = 0;
            while (result == DEFT_NET_SUCCESS && request != nullptr && done == 0 &&
                   std::chrono::steady_clock::now() < deadline) {
                result = net.test(request, &done, nullptr);
                sched_yield();
            }
            failed = result != DEFT_NET_SUCCESS;
            if (!sends && done != 0 && !failed) {
                throw DriveError("a receive completed though the peer had sent nothing");
            }
            if (!side.options.reports_errors) {
                break;
            }
        }
        if (!failed && side.options.reports_errors) {
            throw DriveError(std::string(sends ? "sends" : "a receive") +
                             " did not fail though the peer closed");
        }
        check(net.dereg_mr(comm, mhandle), net, "deregMr");
    }
    close_all(side.net, &made);
    side.peer.barrier();
    still_works(side);
}

// A communicator is given up at any moment between listen and the last request: each side stops
// after a number of calls of its own and closes what it has.
void abort_anywhere(Side& side) {
    Net& net = *side.net.net();
    std::mt19937_64 own(side.options.seed * 2 + static_cast<uint64_t>(side.index));
    for (int round = 0; round < 8 * side.options.rounds; ++round) {
        const int calls = static_cast<int>(own() % 3 == 0 ? own() % 5 : own() % 400);
        Handle handle{};
        void* listen_comm = nullptr;
        if (side.index == 1) {
            check(net.listen(side.net.context(), 0, handle.data(), &listen_comm), net, "listen");
            side.peer.exchange({handle});
        } else {
            handle = side.peer.exchange({}).at(0);
        }
        void* comm = nullptr;
        DeviceHandle* device_handle = nullptr;
        Abandoned requests;
        bool failed = false;  // the other side has left: rightly an error
        int call = 0;
        for (; call < calls && comm == nullptr && !failed; ++call) {
            if (side.index == 1) {
                check(net.accept(listen_comm, &comm, &device_handle), net, "accept");
            } else {
                failed = net.connect(side.net.context(), 0, handle.data(), &comm, &device_handle) !=
                         DEFT_NET_SUCCESS;
            }
            sched_yield();
        }
        if (comm != nullptr && own() % 4 != 0) {
            try {
                requests.post(net, comm, side.index == 0);
            } catch (const DriveError&) {
                // The other side has left.
            }
            if (requests.mhandle != nullptr || requests.posted > 0) {
                check(net.dereg_mr(comm, requests.mhandle), net, "deregMr");
            }
        }
        if (comm != nullptr) {
            check(side.index == 1 ? net.close_recv(comm) : net.close_send(comm), net, "close");
        }
        if (listen_comm != nullptr) {
            check(net.close_listen(listen_comm), net, "closeListen");
        }
        side.peer.barrier();
    }
    still_works(side);
}

// What test called done is delivered even if the sender closes at once.
void sender_closes_after_last_byte(Side& side) {
    for (int round = 0; round < side.options.rounds; ++round) {
        Connections made = side.connect(1, 0);
        const uint64_t seed = side.shared();
        const size_t bytes = side.options.largest;
        const auto fill = [seed](uint64_t index, char* slot, size_t size) {
            fill_pattern(seed, index, slot, size);
        };
        const auto compare = [seed, bytes](uint64_t index, char* slot, size_t size) {
            if (size != bytes || check_pattern(seed, index, slot, size) != size) {
                throw DriveError("bytes were lost when the sender closed");
            }
        };
        {
            const bool sends = side.index == 0;
            Stream stream(*side.net.net(), sends ? made.send[0] : made.receive[0],
                          sends ? Kind::Send : Kind::Receive, 4, bytes);
            if (sends) {
                stream.begin(8, {}, fill);
            } else {
                stream.begin(8, {}, compare);
            }
            run_streams(std::array{&stream}, {}, side.patience());
        }
        close_all(side.net, &made);
        side.peer.barrier();
    }
}

}  // namespace softdev::net
