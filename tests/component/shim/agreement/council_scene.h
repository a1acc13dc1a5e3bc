// SPDX-License-Identifier: Apache-2.0
// Ranks of one communicator as councils in this process, over loopback, and a member that records.
#pragma once

#include <gtest/gtest.h>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shim/agreement/council.h"

namespace deft::agreement::test {

using namespace std::chrono_literals;

// Generous: only a failing test waits for it.
inline constexpr auto kPatience = 60s;

template <class Predicate>
bool eventually(Predicate&& predicate) {
    const auto deadline = Clock::now() + kPatience;
    while (!predicate()) {
        if (Clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

inline std::vector<std::byte> bytes(const std::string& text) {
    std::vector<std::byte> out(text.size());
    std::memcpy(out.data(), text.data(), text.size());
    return out;
}

inline std::string text(std::span<const std::byte> data) {
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
}

class Recorder final : public Member {
public:
    Answer prepare(const Proposal& proposal) noexcept override {
        const std::lock_guard lock(mutex_);
        asked_.push_back(proposal);
        return asked_.size() > answers_.size() ? Answer::Yes : answers_[asked_.size() - 1];
    }
    void decided(std::uint64_t serial, bool commit) noexcept override {
        const std::lock_guard lock(mutex_);
        decisions_[serial] = commit;
    }
    void heard(int rank, std::span<const std::byte> report) noexcept override {
        const std::lock_guard lock(mutex_);
        heard_.emplace_back(rank, text(report));
    }
    void verdict(Verdict verdict) noexcept override {
        const std::lock_guard lock(mutex_);
        verdicts_.push_back(verdict);
    }
    void closed(const char* why) noexcept override {
        const std::lock_guard lock(mutex_);
        closed_.push_back(why);
    }

    // What prepare() answers, call by call; Yes once they are used up.
    void answer_with(std::vector<Answer> answers) {
        const std::lock_guard lock(mutex_);
        answers_ = std::move(answers);
    }
    std::vector<Proposal> asked() const { return copy(asked_); }
    std::map<std::uint64_t, bool> decisions() const { return copy(decisions_); }
    std::vector<std::pair<int, std::string>> heard() const { return copy(heard_); }
    std::vector<Verdict> verdicts() const { return copy(verdicts_); }
    std::vector<std::string> closings() const { return copy(closed_); }

private:
    template <class T>
    T copy(const T& value) const {
        const std::lock_guard lock(mutex_);
        return value;
    }
    mutable std::mutex mutex_;
    std::vector<Answer> answers_;
    std::vector<Proposal> asked_;
    std::map<std::uint64_t, bool> decisions_;
    std::vector<std::pair<int, std::string>> heard_;
    std::vector<Verdict> verdicts_;
    std::vector<std::string> closed_;
};

inline Terms terms(const std::string& settings = "DEFT_MODE=deft DEFT_MAX_DELAY=1",
                   std::chrono::nanoseconds timeout = kPatience) {
    Terms made;
    made.nccl_version = 22809;
    made.settings = settings;
    made.timeout = timeout;
    made.again = {};  // Off is Off
    return made;
}

inline deft_nccl_unique_id_t make_id() {
    deft_nccl_unique_id_t id{};
    std::memset(id.internal, 0x5a, 36);
    std::string why;
    EXPECT_TRUE(write_trailer(id, why)) << why;
    return id;
}

// Until the process ends, so that tests may look at one that was left.
inline Council* kept(CouncilRef council) {
    static auto& all = *new std::vector<CouncilRef>;
    all.push_back(std::move(council));
    return all.back().get();
}

// A communicator of `size` ranks; rank 0 leads.
class Scene {
public:
    explicit Scene(int size) : id(make_id()), members(static_cast<std::size_t>(size)) {
        councils.resize(members.size());
    }
    Scene(const Scene&) = delete;
    ~Scene() {
        for (std::size_t rank = 0; rank < councils.size(); ++rank) {
            leave(static_cast<int>(rank));
        }
    }
    Council* join(int rank, const Terms& with = terms()) {
        Council* const council = kept(agreement::join(id, size(), rank, with));
        EXPECT_NE(council, nullptr);
        councils[static_cast<std::size_t>(rank)] = council;
        council->attach(&members[static_cast<std::size_t>(rank)]);
        return council;
    }
    void join_all(const Terms& with = terms()) {
        for (int rank = 0; rank < size(); ++rank) {
            join(rank, with)->created();
        }
    }
    void leave(int rank) {
        Council*& council = councils[static_cast<std::size_t>(rank)];
        if (council != nullptr) {
            council->detach(&members[static_cast<std::size_t>(rank)]);
            council->leave();
            council = nullptr;
        }
    }
    bool all(Verdict verdict) const {
        return eventually([&] {
            for (const Council* council : councils) {
                if (council != nullptr && council->verdict() != verdict) {
                    return false;
                }
            }
            return true;
        });
    }
    int size() const { return static_cast<int>(members.size()); }
    Council& operator[](int rank) { return *councils[static_cast<std::size_t>(rank)]; }
    Recorder& member(int rank) { return members[static_cast<std::size_t>(rank)]; }

    deft_nccl_unique_id_t id;
    std::vector<Recorder> members;
    std::vector<Council*> councils;
};

inline Proposal proposal(std::uint64_t serial, std::uint64_t switch_call = 100,
                         const std::string& body = "plan") {
    Proposal made;
    made.serial = serial;
    made.switch_call = switch_call;
    made.body = bytes(body);
    made.patience = kPatience;
    return made;
}

}  // namespace deft::agreement::test
