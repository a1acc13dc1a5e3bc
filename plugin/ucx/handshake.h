// SPDX-License-Identifier: Apache-2.0
// From a TCP connection to a path over UCX: both ends make a channel and tell each other where it
// is; the sender connects and greets, and the receiver, which has heard it, does the same.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "plugin/core/blocking_calls.h"
#include "plugin/core/port.h"
#include "plugin/ucx/ucx_path.h"

namespace deft::net {

// One end of it.
class UcxHandshake final : public Handshake {
public:
    // `socket`: as Port::begin. `description`: of the path.
    UcxHandshake(std::shared_ptr<UcxDevice> device, PathRole role, UniqueFd socket,
                 const std::string& description);
    ~UcxHandshake() override;
    UcxHandshake(const UcxHandshake&) = delete;
    UcxHandshake& operator=(const UcxHandshake&) = delete;

    Result poll(std::unique_ptr<Path>& path) override;
    const char* failure() const override { return failure_.c_str(); }

private:
    enum class Stage { Making, Telling, Connecting, Greeting, Over };
    struct Made;  // by threads that may block

    Result fail(const std::string& why);
    Result take_made();
    Result tell();
    bool hear();
    bool say();
    Result connect();
    Result wait_for_connect();
    Result greet(std::unique_ptr<Path>& path);

    const PathRole role_;
    const std::string description_;
    BlockingCalls* calls_ = nullptr;  // of the device
    Stage stage_ = Stage::Making;
    UniqueFd socket_;
    std::shared_ptr<Made> made_;
    std::unique_ptr<UcxPath> path_;
    std::vector<std::byte> out_;
    std::size_t out_done_ = 0;
    std::vector<std::byte> in_;
    std::size_t in_done_ = 0;
    bool connected_ = false;
    bool greeted_ = false;  // the sender's greeting is out
    std::string failure_;
};

}  // namespace deft::net
