// SPDX-License-Identifier: Apache-2.0
// Whether the process at the other end is gone, as far as an end without a path can tell. Pure.
#pragma once

#include "plugin/core/clock.h"

namespace deft::net {

// What the host of the peer answers to whoever asks for this connection.
enum class Word {
    None,     // nothing yet
    Lives,    // the process has it
    Closed,   // the process does not, or no longer
    Refused,  // nobody listens
    Unheard   // it cannot be asked from here (a translated address)
};

// A connection that ends is no evidence by itself: middleboxes reset connections, a host answers
// with a reset for those that it has given up, and every attempt that is broken off is one that
// ends at the peer. It takes the peer's own word, or that of its host, that nobody listens where
// the peer did.
class PeerEvidence {
public:
    // The host may say so for a moment of a living process, whose packets a firewall rejects while
    // its rules are loaded: without an end of a connection it has to repeat it for so long.
    static constexpr Nanos kRepeated = 30 * kSecond;

    // The paths of a killed process end within so long of each other.
    static constexpr Nanos kTogether = 2 * kSecond;

    void connected() { *this = PeerEvidence{}; }
    // A path was lost; `ended`: with a FIN or a reset. `last`: there is none any more.
    void lost(bool ended, bool last, Nanos now) {
        if (ended) {
            ended_at_ = now;
        }
        if (last) {  // what was heard before was of paths that were missing, not of the peer
            ended_ = ended_at_ != 0 && now - ended_at_ <= kTogether;
            word_ = Word::None;
            since_ = 0;
        }
    }
    void heard(Word word, Nanos now) {
        switch (word) {
            case Word::None:
                return;
            case Word::Lives:
                since_ = 0;
                word_ = word;
                return;
            case Word::Closed:
            case Word::Refused:
            case Word::Unheard:
                since_ = since_ == 0 ? now : since_;
                word_ = word;
                return;
        }
    }
    bool gone(Nanos now) const {
        switch (word_) {
            case Word::None:
            case Word::Lives:
                return false;
            case Word::Closed:
                return true;
            case Word::Refused:
                return ended_ || now - since_ >= kRepeated;
            case Word::Unheard:
                return ended_ && now - since_ >= kRepeated;
        }
        return false;
    }
    // For messages.
    const char* reason() const {
        return word_ == Word::Closed    ? "the peer has closed this connection"
               : word_ == Word::Refused ? "the peer process is gone: nobody listens on its host"
                                        : "the peer process is gone: it closed every path";
    }

private:
    bool ended_ = false;
    Nanos ended_at_ = 0;
    Word word_ = Word::None;
    Nanos since_ = 0;  // it says what it says now
};

}  // namespace deft::net
