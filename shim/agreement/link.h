// SPDX-License-Identifier: Apache-2.0
// A connection to another process of the job, which carries the frames of all councils that the two
// have in common. Used by the agreement thread only.
#pragma once

#include <string>
#include <vector>

#include "shim/agreement/poller.h"
#include "shim/agreement/stream.h"

namespace deft::agreement {

class Link;

// What the agreement thread's links have in common.
struct Links {
    Poller poller;
    // Have ended, and their owners have not been told yet.
    std::vector<Link*> ended;
};

class LinkOwner {
public:
    // A frame has come. False: it is nonsense, and the link ends.
    virtual bool take(Link& link, const wire::Header& header,
                      std::span<const std::byte> payload) = 0;
    // The link has ended: "is gone". It may be destroyed now. Never called from within send().
    virtual void ended(Link& link, const std::string& how) = 0;
    // connect() has come to its end.
    virtual void connected(Link& /*link*/) {}

protected:
    ~LinkOwner() = default;
};

class Link final : public Watcher {
public:
    // connecting: the kernel has yet to make the connection.
    Link(Links& links, UniqueFd fd, LinkOwner& owner, bool connecting = false);
    Link(const Link&) = delete;
    ~Link();

    // Another owner hears of what comes from now on.
    void give_to(LinkOwner& owner) { owner_ = &owner; }
    // Of a stranger: its frames may have so many bytes of payload. 0: as many as their types.
    void limit(std::size_t bytes) { limit_ = bytes; }

    bool open() const { return stream_.open() && !over_; }
    // Sends a frame, or queues it. What goes wrong is told later, as the link's end.
    void send(const wire::Frame& frame);
    bool flushed() const { return stream_.flushed(); }
    std::size_t waiting() const { return stream_.waiting(); }
    // Nothing is read, so that the other end has to wait.
    void hold(bool held);
    // Ends it; the owner is told later.
    void end(const std::string& how);
    // Reads what has come already.
    void read();
    // The other end has closed and said nothing more.
    bool gone() const { return stream_.gone(); }
    // The bytes of the frame that the owner is asked to take.
    std::span<const std::byte> whole() const { return stream_.whole(); }
    const Stream& stream() const { return stream_; }

    void ready(std::uint32_t events, Clock::time_point now) override;
    // Tells the owners of all that have ended.
    static void tell_ends(Links& links);

private:
    Links& links_;
    LinkOwner* owner_;
    Stream stream_;
    std::string how_;
    std::size_t limit_ = 0;
    std::uint32_t events_ = 0;  // that it is waited for
    bool connecting_ = false;
    bool held_ = false;
    bool over_ = false;

    void wait_for_what_is_due();
    bool finish_connecting();
};

}  // namespace deft::agreement
