// SPDX-License-Identifier: Apache-2.0
// What every kind of link must do (plugin/core/path.h), as one suite. A new kind adds a LinkKind.
#pragma once

#include <memory>
#include <string>

#include "plugin/core/path.h"
#include "plugin/core/receiver.h"

namespace deft::net::testing {

// Two ends of one link of a kind, in one process, driven by one thread.
class LinkScene {
public:
    virtual ~LinkScene() = default;
    // The connecting side's maker of path 0.
    virtual std::unique_ptr<Dialer> dialer() = 0;
    // The accepting side: the next path that was let in.
    virtual bool next(Nanos now, Admitted& admitted) = 0;
    // Of granted paths: where the accepting side registers memory.
    virtual std::shared_ptr<Domain> domain() const { return nullptr; }
    // Nobody listens any more.
    virtual void stop_listening() = 0;
    // More bytes than can be on their way.
    virtual std::size_t too_much() const { return std::size_t{256} << 20; }
};

struct LinkKind {
    const char* name;
    // NULL and the reason where this host has no such link.
    std::unique_ptr<LinkScene> (*make)(std::string& reason);
};

extern const LinkKind kTcpKind;
extern const LinkKind kTcp6Kind;
extern const LinkKind kVerbsKind;
extern const LinkKind kUcxKind;
extern const LinkKind kTcpLookKind;  // with TcpPath::Options::look_first

}  // namespace deft::net::testing
