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
            forget();
        }
    }
    void heard(Word word, Nanos now) {
        switch (word) {
            case Word::None:
                return;
            case Word::Lives:
                forget();
                return;
            case Word::Closed:
                closed_ = true;
                return;
            case Word::Refused:
                refused_since_ = refused_since_ == 0 ? now : refused_since_;
                return;
            case Word::Unheard:  // one link cannot ask: another may hear more
                unheard_since_ = unheard_since_ == 0 ? now : unheard_since_;
                return;
        }
    }
    bool gone(Nanos now) const {
        return closed_ || (refused_since_ != 0 && (ended_ || now - refused_since_ >= kRepeated)) ||
               (unheard_since_ != 0 && ended_ && now - unheard_since_ >= kRepeated);
    }
    // For messages.
    const char* reason() const {
        return closed_               ? "the peer has closed this connection"
               : refused_since_ != 0 ? "the peer process is gone: nobody listens on its host"
                                     : "the peer process is gone: it closed every path";
    }

private:
    void forget() {
        closed_ = false;
        refused_since_ = unheard_since_ = 0;
    }

    bool ended_ = false;
    Nanos ended_at_ = 0;
    // Since the last path was lost, and since anybody said that the peer lives; 0: never.
    bool closed_ = false;
    Nanos refused_since_ = 0;
    Nanos unheard_since_ = 0;
};

}  // namespace deft::net
