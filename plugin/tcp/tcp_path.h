// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "plugin/core/path.h"
#include "plugin/core/request.h"
#include "plugin/tcp/congestion.h"
#include "plugin/tcp/page_pipes.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

// A path over one TCP connection, with the frames of wire.h.
class TcpPath final : public Path {
public:
    enum class Role { Sender, Receiver };
    struct Options {
        bool checked = false;     // the bytes of chunks carry checksums, as the hello said
        bool look_first = false;  // receiver: see peeked_
        int looks = 4;            // so many tiny messages are taken together, where the kernel can
        bool lent = false;        // receiver: large chunks may be the pages of the peer's job
        std::shared_ptr<PagePipes> pages;  // sender: large chunks go this way; NULL: copied
        LossWatch losses;                  // sender
    };
    TcpPath(UniqueFd fd, Role role, std::string description, Options options);
    TcpPath(UniqueFd fd, Role role, std::string description)
        : TcpPath(std::move(fd), role, std::move(description), Options{}) {}
    ~TcpPath() override = default;

    Post post(const Chunk& chunk) override;
    Post send(const Control& control) override;
    Post ask_fence(std::uint16_t path, std::uint32_t incarnation) override;
    Post send_bye() override;
    void abandon(std::uint64_t message) override;
    Poll poll(PathEvents& events, bool reading) override;
    bool drained() const override;
    void leave_to_kernel() override;
    bool writing() const override { return header_left_ + data_left_ + control_left_ > 0; }
    void close(Nanos limit) override;
    bool retract() override;
    Nanos silence() const override;
    void look_after(Nanos now) override;
    Loss loss() const override { return loss_; }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return description_.c_str(); }

private:
    // Headers and chunks of up to kStaged bytes that come alone take the way through the stage: to
    // copy them from there costs less than a second call to read the rest.
    static constexpr std::size_t kStaged = 32768;
    static constexpr std::size_t kTail = 1024;  // read beyond a chunk for the next header
    static constexpr std::size_t kStage = kStaged + kTail;
    static_assert(kStaged >= kEagerBytes && kTail >= wire::kChunkBytes);
    // NCCL's GPUs look for the flags inside a message of LL (64 KiB at most) and LL128 (614,400
    // bytes with the default NCCL_LL128_BUFFSIZE) while it comes: with checksums nothing of it may
    // be seen before it is verified. Larger ones are of protocol Simple, which waits for the whole.
    static constexpr std::size_t kFlagged = 614400;

    void begin_frame(const wire::ChunkHeader& header);
    Post send_empty(const wire::ChunkHeader& header);
    Poll flush();
    ssize_t send_copy();
    ssize_t send_pages();
    Poll write_control();
    Poll read_controls(PathEvents& events);
    Poll read_chunks(PathEvents& events);
    enum class Step { Go, NeedMore, Failed };
    Step take_header(PathEvents& events);
    Step begin_large(PathEvents& events, const wire::ChunkHeader& header, std::size_t here);
    bool refused(PathEvents::Place place);
    Poll read_payload(PathEvents& events, bool& drained);
    bool take_looked_at();
    Poll fill_stage(bool look, bool whole, bool& drained);
    Poll lost(Loss loss, const char* text);
    void reset();  // the connection
    bool inherited() const { return made_by_ != ::getpid(); }
    void throw_away_input();
    Poll lost_errno(const char* call);
    Poll damaged();
    Poll not_decoded(wire::Decoded why);
    bool taken_back();
    static bool would_block();  // the last call found nothing to do
    std::size_t staged() const { return stage_end_ - stage_begin_; }

    UniqueFd fd_;
    const pid_t made_by_ = ::getpid();  // in a forked child it is the parent's connection
    Role role_;
    bool checked_;
    bool look_first_;
    bool lent_;
    std::string description_;
    Loss loss_ = Loss::None;
    std::string failure_;

    // Sender: the frame on its way out. The bytes of a very small chunk stand behind its header:
    // one piece is cheaper for the kernel than two.
    std::array<std::byte, 256> header_;
    std::size_t header_end_ = 0;
    std::size_t header_left_ = 0;
    const std::byte* data_ = nullptr;  // NULL: the message was abandoned, send filler
    std::size_t data_left_ = 0;
    std::uint64_t out_message_ = 0;
    bool lend_ = false;  // its bytes may go by pages_
    std::shared_ptr<PagePipes> pages_;
    LossWatch losses_;
    Nanos next_look_ = 0;  // for losses
    bool retracted_ = false;
    bool full_ = false;  // the socket had no room for pages: they are put into a pipe once it has
    int again_ = 0;      // so many times in a row it had room then, and took no pages
    // Receiver: the control frame on its way out.
    std::array<std::byte, wire::kControlBytes> control_;
    std::size_t control_left_ = 0;
    // Incoming bytes that were read ahead, and the chunk being read.
    std::array<std::byte, kStage> stage_;
    std::size_t stage_begin_ = 0;
    std::size_t stage_end_ = 0;
    Chunk chunk_;
    std::size_t payload_left_ = 0;
    // Taking a small segment out of the socket makes the kernel answer with an acknowledgement
    // before recv() returns (tcp_cleanup_rbuf() in net/ipv4/tcp.c), which costs as much as sending
    // a message. So tiny messages are only looked at (MSG_PEEK), handed over, and taken at the
    // second poll after that: their receiver has then had time to answer. Where the kernel looks on
    // behind what was looked at (SO_PEEK_OFF on TCP, Linux 6.10), several are taken together, or
    // what there is once no more comes.
    struct Peeked {
        int most = 1;  // times, before they are taken
        int times = 0;
        int polls = 0;          // since the last of them
        std::size_t bytes = 0;  // looked at and handed over, not yet taken
    };
    Peeked peeked_;
    bool quiet_ = false;          // the socket was found empty since bytes were last read otherwise
    bool last_tiny_ = false;      // so was the chunk that came last
    bool last_large_ = false;     // it is read straight to where it belongs
    std::uint32_t sum_ = 0;       // of its bytes so far
    std::uint32_t expected_ = 0;  // as its header says
    bool verify_ = false;         // false too once some of it was thrown away unseen
    bool apart_ = false;          // it is collected in unverified_
    std::unique_ptr<std::byte[]> unverified_;  // kFlagged bytes; pages never used cost nothing
    bool overtaken_ = false;  // some of it was thrown away while another path brought it
};

}  // namespace deft::net
