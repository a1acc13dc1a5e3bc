// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/inquiry.h"

#include <algorithm>

namespace deft::net {
namespace {

constexpr Nanos kFirstPause = 20 * kMillisecond;
constexpr Nanos kLongestPause = kSecond;
// Somebody listens and does not answer: its NCCL has no time for it.
constexpr Nanos kListens = 2 * kSecond;

TcpDialer::Options options_of() {
    TcpDialer::Options options;
    options.congestion = "system";
    return options;
}

}  // namespace

Inquiry::Inquiry(std::shared_ptr<const Device> device, Route route, const wire::Hello& hello)
    : device_(std::move(device)), route_(std::move(route)), hello_(hello) {}

Word Inquiry::ask(Nanos now) {
    if (!open_) {
        if (now < next_) {
            return Word::None;
        }
        if (dialer_ == nullptr) {
            dialer_ = std::make_unique<TcpDialer>(device_, route_, hello_, options_of());
        }
        dialer_->start(++questions_, now);
        open_ = true;
        began_ = now;
    }
    Connected connected;
    Word word = Word::None;
    switch (dialer_->poll(now, connected)) {
        case Dialer::Result::Pending:
            if (!dialer_->reached(now) || now - began_ < kListens) {
                return Word::None;
            }
            dialer_->cancel();
            word = Word::Lives;
            break;
        case Dialer::Result::Connected:
            word = Word::Lives;
            break;
        case Dialer::Result::Closed:
        case Dialer::Result::Fatal:
            word = Word::Closed;
            break;
        case Dialer::Result::Refused:
            word = Word::Refused;
            break;
        case Dialer::Result::Silent:
        case Dialer::Result::Failed:
            break;
    }
    open_ = false;
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    next_ = now + pause_;
    return word;
}

}  // namespace deft::net
