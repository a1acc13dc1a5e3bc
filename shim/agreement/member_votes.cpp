// SPDX-License-Identifier: Apache-2.0
// What a member says to the leader's proposals.
#include <utility>

#include "shim/agreement/member_role.h"

namespace deft::agreement {

bool MemberRole::take_proposal(std::span<const std::byte> payload) {
    wire::Prepare prepare;
    if (!wire::decode(payload, prepare) || prepare.serial == 0) {
        return false;
    }
    if (state_ == State::Doubt && prepare.serial == serial_) {
        // The leader has not heard the yes, so this rank may still take it back.
        say(wire::Type::Answer, wire::encode(wire::Word{serial_, false, digest_}));
        return true;
    }
    if (state_ != State::Open) {
        return false;
    }
    const bool stale = prepare.serial != serial_ && prepare.serial <= last_serial_;
    if (stale) {
        return false;  // serials grow
    }
    const bool again = serial_ == prepare.serial;  // this rank has come back another way
    if (again || serial_ != 0) {
        if (again && answered_) {
            answer(serial_, *answered_);
        }
        return again && digest_ == prepare.digest;
    }
    Proposal proposal;
    proposal.serial = prepare.serial;
    proposal.switch_call = prepare.switch_call;
    proposal.body.assign(prepare.body.begin(), prepare.body.end());
    digest_ = wire::digest_of(proposal.serial, proposal.switch_call, proposal.body);
    if (digest_ != prepare.digest) {
        return false;
    }
    serial_ = last_serial_ = prepare.serial;
    answered_.reset();
    switch (core_.ask(proposal)) {
        case Answer::No:
            answer(serial_, false);
            break;
        case Answer::Yes:
            answer(serial_, true);
            break;
        case Answer::Later:
            break;
    }
    return true;
}

bool MemberRole::take_decision(std::span<const std::byte> payload) {
    wire::Word word;
    if (!wire::decode(payload, word) || (state_ != State::Open && state_ != State::Doubt)) {
        return false;
    }
    if (word.serial != serial_) {
        // Who comes back may hear one twice, or one that it was never asked about.
        return returning_ || word.serial <= last_serial_;
    }
    if (word.digest != digest_) {
        return false;
    }
    decide(word.yes);
    if (state_ == State::Doubt) {
        bow_out();
        state_ = State::Done;
        returning_ = false;
        back_by_ = kNever;
    }
    return true;
}

void MemberRole::decide(bool commit) {
    const std::uint64_t serial = std::exchange(serial_, 0);
    answered_.reset();
    if (core_.begin_decision(serial)) {
        core_.finish_decision(serial, commit);
    }
}

void MemberRole::answer(std::uint64_t serial, bool yes) {
    if (state_ == State::Open && serial == serial_) {
        answered_ = yes;
        say(wire::Type::Answer, wire::encode(wire::Word{serial, yes, digest_}));
    }
}

// It has said yes to a proposal, and does not know what became of that. The leader commits only to
// what all ranks have said yes to, so whoever has not knows that nobody switches.
bool MemberRole::promised() {
    if (serial_ != 0 && !answered_.value_or(false)) {
        decide(false);
    }
    return serial_ != 0;
}

}  // namespace deft::agreement
