// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "softdev/net/rules_close.h"
#include "softdev/net/rules_driver.h"

namespace softdev::net {
namespace {

using Kind = Stream::Kind;

// Both ends of a connection draw sizes and bytes from the same seed.
struct Traffic {
    Side& side;
    uint64_t messages;
    uint64_t seed;
    bool empty_only = false;

    void begin(Stream& stream, size_t connection, bool from_side_0) const {
        const uint64_t own = seed * 1000 + connection * 2 + (from_side_0 ? 0 : 1);
        const Side& here = side;
        const bool none = empty_only;
        const auto size_of = [own, none, &here](uint64_t index) {
            std::mt19937_64 random(own * 1000003 + index);
            return none ? 0 : here.random_size(random);
        };
        if (stream.kind() == Kind::Send) {
            stream.begin(messages, size_of, [own](uint64_t index, char* slot, size_t bytes) {
                fill_pattern(own, index, slot, bytes);
            });
            return;
        }
        stream.begin(messages, {}, [own, size_of](uint64_t index, char* slot, size_t bytes) {
            const size_t expected = size_of(index);
            if (bytes != expected) {
                throw DriveError("message " + std::to_string(index) + ": " + std::to_string(bytes) +
                                 " bytes reported, " + std::to_string(expected) + " were sent");
            }
            if (const size_t at = check_pattern(own, index, slot, bytes); at != bytes) {
                throw DriveError("message " + std::to_string(index) + " of " +
                                 std::to_string(bytes) + " bytes: byte " + std::to_string(at) +
                                 " is wrong");
            }
        });
    }
};

std::vector<Stream> make_streams(Side& side, const Connections& made, int depth) {
    std::vector<Stream> streams;
    for (void* comm : made.send) {
        streams.emplace_back(*side.net.net(), comm, Kind::Send, depth, side.options.largest);
    }
    for (void* comm : made.receive) {
        streams.emplace_back(*side.net.net(), comm, Kind::Receive, depth, side.options.largest);
    }
    return streams;
}

void run_traffic(Side& side, const Connections& made, std::vector<Stream>& streams,
                 const Traffic& traffic) {
    std::vector<Stream*> list;
    for (size_t i = 0; i < streams.size(); ++i) {
        const bool sends = i < made.send.size();
        traffic.begin(streams[i], sends ? i : i - made.send.size(), sends == (side.index == 0));
        list.push_back(&streams[i]);
    }
    run_streams(list, {}, side.patience());
}

// What both sides agree on: connections, depth, a number of messages that moves some tens of MB.
void random_round(Side& side, size_t outgoing, size_t incoming, int depth, uint64_t messages) {
    const uint64_t seed = side.shared();
    Connections made = side.connect(outgoing, incoming);
    {
        std::vector<Stream> streams = make_streams(side, made, depth);
        run_traffic(side, made, streams, Traffic{side, messages, seed});
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

void properties(Side& side) {
    std::set<std::string> names;
    for (int i = 0; i < side.net.devices(); ++i) {
        check_properties(side.net, i);
        Properties p;
        check(side.net->get_properties(i, &p), *side.net.net(), "getProperties");
        if (!names.insert(p.name).second) {
            throw DriveError(std::string("two devices are named ") + p.name);
        }
    }
    const std::string name = side.net->name();
    if (side.net->external() && (name == "Socket" || name == "IB")) {
        throw DriveError("the plugin has the name of an internal network: " + name);
    }
}

void random_traffic(Side& side) {
    for (int round = 0; round < side.options.rounds; ++round) {
        const size_t outgoing = side.shared() % 4;
        const size_t incoming = 1 + side.shared() % 4;
        const int depth = 1 + static_cast<int>(side.shared() % DEFT_NET_MAX_REQUESTS);
        random_round(side, outgoing, incoming, depth, 40 + side.shared() % 60);
    }
}

void empty_messages(Side& side) {
    Connections made = side.connect(1, 1);
    {
        std::vector<Stream> streams = make_streams(side, made, 8);
        Traffic traffic{side, 500, side.shared()};
        traffic.empty_only = true;
        run_traffic(side, made, streams, traffic);
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

void many_connections(Side& side) {
    random_round(side, 24, 24, 4, 10);
}

// The sender starts first; what it posts must wait, or be answered NULL, and arrive.
void late_receiver(Side& side) {
    Connections made = side.connect(2, 0);
    {
        std::vector<Stream> streams = make_streams(side, made, 8);
        const Traffic traffic{side, 60, side.shared()};
        if (side.index == 0) {
            for (size_t i = 0; i < streams.size(); ++i) {
                traffic.begin(streams[i], i, true);
                for (int pass = 0; pass < 200; ++pass) {
                    streams[i].step();
                }
            }
            side.peer.barrier();
            std::vector<Stream*> list = {&streams[0], &streams[1]};
            run_streams(list, {}, side.patience());
        } else {
            side.peer.barrier();
            run_traffic(side, made, streams, traffic);
        }
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

// The receiver posts everything it may before the sender sends anything.
void early_receiver(Side& side) {
    Connections made = side.connect(2, 0);
    {
        std::vector<Stream> streams = make_streams(side, made, DEFT_NET_MAX_REQUESTS);
        const Traffic traffic{side, 100, side.shared()};
        if (side.index == 1) {
            for (size_t i = 0; i < streams.size(); ++i) {
                traffic.begin(streams[i], i, true);
                for (int pass = 0; pass < 200; ++pass) {
                    streams[i].step();
                }
            }
            side.peer.barrier();
            std::vector<Stream*> list = {&streams[0], &streams[1]};
            run_streams(list, {}, side.patience());
        } else {
            side.peer.barrier();
            run_traffic(side, made, streams, traffic);
        }
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

// LL: the receiver lets requests complete early and watches the flag in every 8-byte line.
void early_completion(Side& side) {
    constexpr size_t kLines = 8192;  // 64 KiB, an LL step
    constexpr int kDepth = 8;
    constexpr uint32_t kMessages = 200;
    Connections made = side.connect(1, 0);
    Net& net = *side.net.net();
    void* comm = side.index == 0 ? made.send[0] : made.receive[0];
    std::vector<uint64_t> memory(kDepth * kLines);
    const size_t bytes = kLines * sizeof(uint64_t);
    void* mhandle = nullptr;
    check(net.reg_mr(comm, memory.data(), memory.size() * sizeof(uint64_t), DEFT_NET_PTR_HOST,
                     &mhandle),
          net, "regMr");
    void* requests[kDepth] = {};
    uint32_t posted = 0;
    uint32_t tested = 0;
    uint32_t seen = 0;  // receive: messages whose flags are all there
    Deadline deadline = after_seconds(side.options.patience_s);
    const auto line = [&](uint32_t message) { return &memory[message % kDepth * kLines]; };
    while ((side.index == 0 ? tested : seen) < kMessages) {
        bool moved = false;
        const uint32_t freed = side.index == 0 ? tested : seen;
        if (posted < kMessages && posted - freed < kDepth) {
            void*& request = requests[posted % kDepth];
            if (side.index == 0) {
                for (size_t i = 0; i < kLines; ++i) {
                    line(posted)[i] = (uint64_t{posted + 1} << 32) | static_cast<uint32_t>(i);
                }
                request = nullptr;
                check(net.isend(comm, line(posted), bytes, 0, mhandle, nullptr, &request), net,
                      "isend");
            } else {
                request = DEFT_NET_OPTIONAL_RECV_COMPLETION;
                void* data[1] = {line(posted)};
                size_t sizes[1] = {bytes};
                int tags[1] = {0};
                void* mhandles[1] = {mhandle};
                void* phandles[1] = {nullptr};
                check(net.irecv(comm, 1, data, sizes, tags, mhandles, phandles, &request), net,
                      "irecv");
                if (request == DEFT_NET_OPTIONAL_RECV_COMPLETION) {
                    throw DriveError("irecv left the early completion marker in *request");
                }
            }
            moved = request != nullptr;
            posted += moved;
        }
        if (tested < posted) {
            int done = 0;
            check(net.test(requests[tested % kDepth], &done, nullptr), net, "test");
            tested += done;
            moved |= done != 0;
        }
        if (side.index == 1 && seen < tested) {
            size_t right = 0;
            for (size_t i = 0; i < kLines; ++i) {
                const uint64_t value = __atomic_load_n(&line(seen)[i], __ATOMIC_ACQUIRE);
                right += value == ((uint64_t{seen + 1} << 32) | static_cast<uint32_t>(i));
            }
            moved |= right == kLines;
            seen += right == kLines;
        }
        if (moved) {
            deadline = after_seconds(side.options.patience_s);
        } else if (std::chrono::steady_clock::now() > deadline) {
            throw DriveError("early completion: posted " + std::to_string(posted) + ", tested " +
                             std::to_string(tested) + ", seen " + std::to_string(seen));
        }
    }
    check(net.dereg_mr(comm, mhandle), net, "deregMr");
    side.peer.barrier();
    close_all(side.net, &made);
}

// getProperties from other threads, and regMr on the same comm from the service thread, while the
// progress thread moves data.
void concurrent_control(Side& side) {
    Connections made = side.connect(1, 1);
    {
        std::vector<Stream> streams = make_streams(side, made, 8);
        std::atomic<bool> stop{false};
        std::string failures[3];
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&, t] {
                try {
                    std::vector<char> memory(1 << 16);
                    // Not for ever without a pause: two cores carry all of this.
                    for (int i = 0; i < 2000 && !stop; ++i) {
                        if (t < 2) {
                            check_properties(side.net, i % side.net.devices());
                        } else {
                            void* comm = i % 2 != 0 ? made.send[0] : made.receive[0];
                            void* mhandle = nullptr;
                            check(side.net->reg_mr(comm, memory.data(), memory.size(),
                                                   DEFT_NET_PTR_HOST, &mhandle),
                                  *side.net.net(), "regMr");
                            check(side.net->dereg_mr(comm, mhandle), *side.net.net(), "deregMr");
                        }
                        std::this_thread::yield();
                    }
                } catch (const DriveError& error) {
                    failures[t] = error.what();
                }
            });
        }
        std::string failure;
        try {
            run_traffic(side, made, streams, Traffic{side, 150, side.shared()});
        } catch (const DriveError& error) {
            failure = error.what();
        }
        stop = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (const std::string& text : {failure, failures[0], failures[1], failures[2]}) {
            if (!text.empty()) {
                throw DriveError(text);
            }
        }
        side.peer.barrier();
    }
    close_all(side.net, &made);
}

// A second communicator of this process with its own context, closed before the first.
void second_communicator(Side& side) {
    CommNet second;
    CommRequest request;
    request.comm_id = side.options.seed + 1;
    request.traffic_class = 1;
    if (side.registry.open(request, &second) != DEFT_NET_SUCCESS) {
        throw DriveError("a second communicator gets no network");
    }
    Attributes attributes{{-1, -1, -1, -1}, {-1, -1, -1, -1}, ~0u, ~0u, ~0u};
    check(second->set_net_attr(second.context(), &attributes), *second.net(), "setNetAttr");
    {
        Side other{side.index, second, side.registry, side.peer, side.options, side.shared};
        Connections first_made = side.connect(1, 1);
        Connections second_made = other.connect(1, 1);
        {
            std::vector<Stream> first = make_streams(side, first_made, 4);
            std::vector<Stream> then = make_streams(other, second_made, 4);
            run_traffic(side, first_made, first, Traffic{side, 50, 7});
            run_traffic(other, second_made, then, Traffic{other, 50, 8});
            side.peer.barrier();
        }
        close_all(second, &second_made);
        check(second.release(), *side.net.net(), "finalize");
        {
            std::vector<Stream> first = make_streams(side, first_made, 4);
            run_traffic(side, first_made, first, Traffic{side, 50, 9});
            side.peer.barrier();
        }
        close_all(side.net, &first_made);
    }
}

}  // namespace

const std::vector<Scenario>& rules_scenarios() {
    static const std::vector<Scenario> scenarios = {
        {"properties", properties},
        {"random_traffic", random_traffic},
        {"empty_messages", empty_messages},
        {"many_connections", many_connections},
        {"late_receiver", late_receiver},
        {"early_receiver", early_receiver},
        {"early_completion", early_completion},
        {"concurrent_control", concurrent_control},
        {"second_communicator", second_communicator},
        {"late_accept", late_accept},
        {"unused_listen_and_handle", unused_listen_and_handle},
        {"unaccepted_connect", unaccepted_connect},
        {"close_with_requests_in_flight", close_with_requests_in_flight},
        {"peer_closes_first", peer_closes_first},
        {"sender_closes_after_last_byte", sender_closes_after_last_byte},
        {"abort_anywhere", abort_anywhere},
    };
    return scenarios;
}

}  // namespace softdev::net
