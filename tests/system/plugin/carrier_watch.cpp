// SPDX-License-Identifier: Apache-2.0
// What the plugin learns of interfaces that come and go, in a network namespace of its own.
//
// Exit status 77: namespaces are not allowed here.
#include "plugin/tcp/carrier_watch.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

using deft::net::Carrier;
using deft::net::CarrierWatch;

constexpr int kSkipped = 77;
constexpr auto kPatience = std::chrono::seconds(30);
const char* const kName = "eth0";

void ip(const std::string& what) {
    if (std::system(("ip " + what).c_str()) != 0) {
        std::fprintf(stderr, "failed: ip %s\n", what.c_str());
        std::exit(1);
    }
}

// Until so many losses and at least so many returns are known; the kernel takes its time.
void expect(const char* when, std::uint64_t lost, std::uint64_t gained) {
    const auto start = std::chrono::steady_clock::now();
    Carrier carrier;
    while (std::chrono::steady_clock::now() - start < kPatience) {
        carrier = CarrierWatch::of(kName);
        if (carrier.lost == lost && carrier.gained >= gained) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::fprintf(stderr, "%s: lost %llu, gained %llu instead of %llu and %llu\n", when,
                 static_cast<unsigned long long>(carrier.lost),
                 static_cast<unsigned long long>(carrier.gained),
                 static_cast<unsigned long long>(lost), static_cast<unsigned long long>(gained));
    std::exit(1);
}

void expect_unchanged(const char* when, const Carrier& before) {
    for (int i = 0; i < 100; ++i) {
        (void)CarrierWatch::of(kName);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Carrier now = CarrierWatch::of(kName);
    if (now.lost != before.lost || now.gained != before.gained) {
        std::fprintf(stderr, "%s: lost %llu, gained %llu, where nothing was to change\n", when,
                     static_cast<unsigned long long>(now.lost),
                     static_cast<unsigned long long>(now.gained));
        std::exit(1);
    }
}

// Nothing new for three seconds: duplicate address detection and the kernel's watch over links each
// take up to two.
void settle() {
    const auto start = std::chrono::steady_clock::now();
    auto since = start;
    Carrier last = CarrierWatch::of(kName);
    while (std::chrono::steady_clock::now() - since < std::chrono::seconds(3) &&
           std::chrono::steady_clock::now() - start < kPatience) {
        const Carrier now = CarrierWatch::of(kName);
        if (now.lost != last.lost || now.gained != last.gained) {
            since = std::chrono::steady_clock::now();
            last = now;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void make_link() {
    ip("link add eth0 type veth peer name peer0");
    ip("link set peer0 up");
    ip("link set eth0 up");
}

void churn(int links) {
    std::string batch;
    for (int i = 0; i < links; ++i) {
        const std::string name = "other" + std::to_string(i);
        batch +=
            "link add " + name + " type veth peer name p" + name + "\\nlink del " + name + "\\n";
    }
    if (std::system(("printf '" + batch + "' | ip -batch -").c_str()) != 0) {
        std::fprintf(stderr, "failed: ip -batch\n");
        std::exit(1);
    }
}

void each_change_once() {
    make_link();
    ip("addr add 10.77.0.1/24 dev eth0");
    settle();
    expect("before anything happens", 0, 0);

    Carrier before = CarrierWatch::of(kName);
    ip("link set peer0 down");
    expect("the other end set down", 1, before.gained);
    expect_unchanged("still down", CarrierWatch::of(kName));
    before = CarrierWatch::of(kName);
    ip("link set peer0 up");
    expect("the other end up again", 1, before.gained + 1);

    before = CarrierWatch::of(kName);
    ip("link set eth0 down");
    expect("set down", 2, before.gained);
    ip("link set eth0 up");
    expect("up again", 2, before.gained + 1);

    ip("addr del 10.77.0.1/24 dev eth0");
    before = CarrierWatch::of(kName);
    expect_unchanged("an address gone", before);
    ip("addr add 10.77.0.1/24 dev eth0");
    expect("an address back", 2, before.gained + 1);

    // While the kernel looks for a duplicate it is of no use; it is announced again afterwards.
    before = CarrierWatch::of(kName);
    ip("addr add fd00:77::1/64 dev eth0");
    expect_unchanged("an IPv6 address that is not yet to be used", before);
    expect("an IPv6 address that may be used", 2, before.gained + 1);

    ip("link del eth0");
    expect("removed", 3, before.gained);
    before = CarrierWatch::of(kName);
    make_link();
    ip("addr add 10.77.0.1/24 dev eth0");
    expect("made anew, with an address", 3, before.gained + 2);
}

// While nobody looks more happens than the kernel keeps for us.
void lost_events() {
    settle();
    Carrier before = CarrierWatch::of(kName);
    ip("link set peer0 down");
    expect("down before much happens", 4, before.gained);
    churn(300);
    ip("link set peer0 up");
    expect("up again where the events are lost", 4, before.gained + 1);
    if (CarrierWatch::of(kName).down || CarrierWatch::down(kName)) {
        std::fprintf(stderr, "still down for us\n");
        std::exit(1);
    }
    settle();
    before = CarrierWatch::of(kName);
    churn(300);
    ip("link set peer0 down");
    expect("down where the events are lost", 5, before.gained);
    churn(300);
    ip("link del eth0");
    make_link();
    ip("addr add 10.77.0.1/24 dev eth0");
    expect("made anew where the events are lost", 5, before.gained + 1);
    churn(300);
    ip("link del eth0");
    expect("removed where the events are lost", 6, before.gained + 1);
    before = CarrierWatch::of(kName);
    make_link();
    ip("addr add 10.77.0.1/24 dev eth0");
    expect("made anew once more", 6, before.gained + 2);
}

// Others do not matter, however many there are.
void others() {
    settle();
    const Carrier before = CarrierWatch::of(kName);
    expect("made anew", 6, before.gained);
    for (int i = 0; i < 5; ++i) {
        churn(20);
        expect_unchanged("others came and went", before);
    }
}

}  // namespace

int main(int, char** arguments) {
    if (unshare(CLONE_NEWNET) != 0) {
        if (std::getenv("DEFT_TEST_INSIDE") == nullptr &&
            std::system("unshare -Urn true 2>/dev/null") == 0) {
            setenv("DEFT_TEST_INSIDE", "1", 1);
            execlp("unshare", "unshare", "-Urn", "--", arguments[0], nullptr);
        }
        std::printf("skipped: neither root nor user namespaces\n");
        return kSkipped;
    }
    if (std::system("ip link add probe type veth peer name probed && ip link del probe") != 0) {
        std::printf("skipped: no veth links for this user\n");
        return kSkipped;
    }
    each_change_once();
    lost_events();
    others();
    std::printf("ok\n");
    return 0;
}
