// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/stream.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "softdev/net/call_times.h"

namespace softdev::net {
namespace {

uint64_t mixed(uint64_t value) {  // splitmix64's finaliser
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

}  // namespace

Deadline after_seconds(double seconds) {
    return std::chrono::steady_clock::now() +
           std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
}

void check(int result, const Net& net, const char* call) {
    if (result != DEFT_NET_SUCCESS) {
        throw DriveError(std::string(net.name()) + " (v" + std::to_string(net.abi()) +
                         "): " + call + " returned " + result_text(result));
    }
}

Connections establish(
    const CommNet& net, const std::vector<int>& outgoing, const std::vector<int>& incoming,
    const std::function<std::vector<Handle>(const std::vector<Handle>&)>& exchange,
    Deadline deadline) {
    std::vector<void*> listens(incoming.size());
    std::vector<Handle> ours(incoming.size());
    for (size_t i = 0; i < incoming.size(); ++i) {
        ours[i].fill(0);
        check(net->listen(net.context(), incoming[i], ours[i].data(), &listens[i]), *net.net(),
              "listen");
    }
    std::vector<Handle> theirs = exchange(ours);
    if (theirs.size() != outgoing.size()) {
        throw DriveError("the peer listens for " + std::to_string(theirs.size()) +
                         " connections, not " + std::to_string(outgoing.size()));
    }
    Connections made;
    made.send.resize(outgoing.size());
    made.receive.resize(incoming.size());
    for (;;) {
        size_t missing = 0;
        for (size_t i = 0; i < outgoing.size(); ++i) {
            if (made.send[i] == nullptr) {
                DeviceHandle* device_handle = nullptr;
                check(timed("connect", &CallTimes::making,
                            [&] {
                                return net->connect(net.context(), outgoing[i], theirs[i].data(),
                                                    &made.send[i], &device_handle);
                            }),
                      *net.net(), "connect");
                missing += made.send[i] == nullptr;
            }
        }
        for (size_t i = 0; i < incoming.size(); ++i) {
            if (made.receive[i] == nullptr) {
                DeviceHandle* device_handle = nullptr;
                check(timed("accept", &CallTimes::making,
                            [&] {
                                return net->accept(listens[i], &made.receive[i], &device_handle);
                            }),
                      *net.net(), "accept");
                if (made.receive[i] != nullptr) {
                    check(net->close_listen(listens[i]), *net.net(), "closeListen");
                }
                missing += made.receive[i] == nullptr;
            }
        }
        if (missing == 0) {
            return made;
        }
        if (std::chrono::steady_clock::now() > deadline) {
            throw DriveError(std::string(net->name()) + ": " + std::to_string(missing) +
                             " connections were not set up in time");
        }
        sched_yield();
    }
}

void close_all(const CommNet& net, Connections* connections) {
    for (void*& comm : connections->send) {
        check(net->close_send(std::exchange(comm, nullptr)), *net.net(), "closeSend");
    }
    for (void*& comm : connections->receive) {
        check(net->close_recv(std::exchange(comm, nullptr)), *net.net(), "closeRecv");
    }
    connections->send.clear();
    connections->receive.clear();
}

Stream::Stream(const Net& net, void* comm, Kind kind, int depth, size_t slot_bytes)
    : net_(const_cast<Net*>(&net)),
      comm_(comm),
      kind_(kind),
      slot_bytes_(slot_bytes),
      buffer_(std::max<size_t>(1, depth * slot_bytes)),
      slots_(depth) {
    check(net_->reg_mr(comm, buffer_.data(), buffer_.size(), DEFT_NET_PTR_HOST, &mhandle_), net,
          "regMr");
}

Stream::Stream(Stream&& other) noexcept
    : net_(other.net_),
      comm_(std::exchange(other.comm_, nullptr)),
      kind_(other.kind_),
      slot_bytes_(other.slot_bytes_),
      buffer_(std::move(other.buffer_)),
      mhandle_(other.mhandle_),
      slots_(std::move(other.slots_)),
      early_(other.early_) {}

Stream::~Stream() {
    if (comm_ != nullptr) {
        net_->dereg_mr(comm_, mhandle_);
    }
}

void Stream::begin(uint64_t messages, SizeOf size_of, Touch touch) {
    target_ = messages;
    posted_ = completed_ = bytes_ = null_requests_ = 0;
    prepared_ = false;
    size_of_ = std::move(size_of);
    touch_ = std::move(touch);
}

bool Stream::post() {
    const size_t place = posted_ % slots_.size();
    Slot& slot = slots_[place];
    char* data = buffer_.data() + place * slot_bytes_;
    if (!prepared_) {
        if (ready_ && !ready_(posted_)) {
            return false;
        }
        slot.bytes = kind_ == Kind::Send && size_of_ ? size_of_(posted_) : slot_bytes_;
        if (kind_ == Kind::Send && touch_) {
            touch_(posted_, data, slot.bytes);
        }
        prepared_ = true;
    }
    int tag = 0;
    if (kind_ == Kind::Send) {
        check(timed("isend", &CallTimes::moving,
                    [&] {
                        return net_->isend(comm_, data, slot.bytes, tag, mhandle_, nullptr,
                                           &slot.request);
                    }),
              *net_, "isend");
    } else {
        void* buffers[1] = {data};
        size_t sizes[1] = {slot.bytes};
        int tags[1] = {tag};
        void* mhandles[1] = {mhandle_};
        void* phandles[1] = {nullptr};
        if (early_) {
            slot.request = DEFT_NET_OPTIONAL_RECV_COMPLETION;
        }
        check(timed("irecv", &CallTimes::moving,
                    [&] {
                        return net_->irecv(comm_, 1, buffers, sizes, tags, mhandles, phandles,
                                           &slot.request);
                    }),
              *net_, "irecv");
        if (slot.request == DEFT_NET_OPTIONAL_RECV_COMPLETION) {
            throw DriveError(std::string(net_->name()) +
                             ": irecv left the early completion marker in *request");
        }
    }
    if (slot.request == nullptr) {
        ++null_requests_;
        return false;
    }
    prepared_ = false;
    ++posted_;
    return true;
}

bool Stream::test_oldest() {
    if (completed_ == posted_) {
        return false;
    }
    const size_t place = completed_ % slots_.size();
    Slot& slot = slots_[place];
    int done = 0;
    int size = -1;
    check(timed("test", &CallTimes::moving, [&] { return net_->test(slot.request, &done, &size); }),
          *net_, "test");
    if (done == 0) {
        return false;
    }
    if (kind_ == Kind::Receive) {
        // Plugins need not report sizes of sends.
        if (size < 0 && !early_) {
            throw DriveError(std::string(net_->name()) + ": test reported no size for a receive");
        }
        slot.bytes = size > 0 ? size : 0;
        if (touch_) {
            touch_(completed_, buffer_.data() + place * slot_bytes_, slot.bytes);
        }
    }
    bytes_ += slot.bytes;
    ++completed_;
    return true;
}

bool Stream::step() {
    bool moved = false;
    while (posted_ < target_ && posted_ - completed_ < slots_.size()) {
        if (!post()) {
            break;
        }
        moved = true;
    }
    // At most one round, so that other streams get their turn.
    for (size_t i = 0; i < slots_.size() && test_oldest(); ++i) {
        moved = true;
        if (posted_ < target_) {
            post();
        }
    }
    return moved;
}

std::string Stream::describe() const {
    return std::string(kind_ == Kind::Send ? "send" : "receive") + " " +
           std::to_string(completed_) + " of " + std::to_string(target_) + " done, " +
           std::to_string(posted_ - completed_) + " in flight";
}

void run_streams(std::span<Stream* const> streams, Idle idle, std::chrono::seconds patience) {
    constexpr unsigned kPassesPerLook = 64;  // at the clock
    Deadline deadline{};
    for (unsigned still = 0;; ++still) {
        bool moved = false;
        bool finished = true;
        for (Stream* stream : streams) {
            moved |= stream->step();
            finished &= stream->finished();
        }
        if (finished) {
            return;
        }
        if (moved) {
            still = 0;
            deadline = Deadline{};
            continue;
        }
        if (idle.sleep.count() > 0) {
            std::this_thread::sleep_for(idle.sleep);
        } else if (!idle.spin) {
            sched_yield();
        }
        if (idle.sleep.count() == 0 && still % kPassesPerLook != 0) {
            continue;
        }
        const Deadline now = std::chrono::steady_clock::now();
        if (deadline == Deadline{}) {
            deadline = now + patience;
        } else if (now > deadline) {
            std::string text = "nothing moved for " + std::to_string(patience.count()) + " s:";
            for (Stream* stream : streams) {
                text += " [" + stream->describe() + "]";
            }
            throw DriveError(text);
        }
    }
}

void fill_pattern(uint64_t seed, uint64_t index, char* to, size_t bytes) {
    const uint64_t base = mixed(seed ^ mixed(index));
    for (size_t offset = 0; offset < bytes; offset += sizeof(uint64_t)) {
        const uint64_t word = mixed(base + offset);
        std::memcpy(to + offset, &word, std::min(sizeof word, bytes - offset));
    }
}

size_t check_pattern(uint64_t seed, uint64_t index, const char* data, size_t bytes) {
    const uint64_t base = mixed(seed ^ mixed(index));
    for (size_t offset = 0; offset < bytes; offset += sizeof(uint64_t)) {
        const uint64_t word = mixed(base + offset);
        const size_t here = std::min(sizeof word, bytes - offset);
        if (std::memcmp(data + offset, &word, here) != 0) {
            size_t wrong = 0;
            while (data[offset + wrong] == reinterpret_cast<const char*>(&word)[wrong]) {
                ++wrong;
            }
            return offset + wrong;
        }
    }
    return bytes;
}

size_t wrong_bytes(uint64_t seed, uint64_t index, const char* data, size_t bytes) {
    std::vector<char> right(bytes);
    fill_pattern(seed, index, right.data(), bytes);
    size_t count = 0;
    for (size_t i = 0; i < bytes; ++i) {
        count += data[i] != right[i];
    }
    return count;
}

}  // namespace softdev::net
