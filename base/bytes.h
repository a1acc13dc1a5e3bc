// SPDX-License-Identifier: Apache-2.0
// Bytes that travel: little-endian, as everything deft puts on a wire.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace deft {

static_assert(std::endian::native == std::endian::little, "NCCL's platforms are");

// Fills a buffer from its start. The caller has made it large enough.
class ByteWriter {
public:
    explicit ByteWriter(std::span<std::byte> out) : out_(out) {}
    template <class T>
    void put(T value) {
        put_bytes(&value, sizeof(value));
    }
    void put_bytes(const void* data, std::size_t size) {
        if (size != 0) {
            std::memcpy(out_.data() + at_, data, size);
        }
        at_ += size;
    }
    // Zero-terminated, zero-padded to `room` bytes; a longer text is cut.
    void put_text(const std::string& text, std::size_t room) {
        const std::size_t size = std::min(text.size(), room - 1);
        put_bytes(text.data(), size);
        std::memset(out_.data() + at_, 0, room - size);
        at_ += room - size;
    }
    // The rest of the buffer.
    void zeros() { std::memset(out_.data() + at_, 0, left()); }
    std::size_t left() const { return out_.size() - at_; }

private:
    std::span<std::byte> out_;
    std::size_t at_ = 0;
};

// Bytes of which nobody knows beforehand how many they become.
class ByteString {
public:
    template <class T>
    void put(T value) {
        static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
        put_bytes(&value, sizeof(value));
    }
    void put_bytes(const void* data, std::size_t size) {
        const auto* from = static_cast<const std::byte*>(data);
        bytes_.insert(bytes_.end(), from, from + size);
    }
    // Behind its length, eight bytes.
    void put_sized_text(const std::string& text) {
        put(std::uint64_t{text.size()});
        put_bytes(text.data(), text.size());
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

// Reads a buffer from its start. What would be behind its end is not read, and ok() is false from
// then on.
class ByteReader {
public:
    explicit ByteReader(std::span<const std::byte> in) : in_(in) {}
    template <class T>
    T get() {
        T value{};
        get_bytes(&value, sizeof(value));
        return value;
    }
    void get_bytes(void* data, std::size_t size) {
        if (left() < size) {
            ok_ = false;
            return;
        }
        std::memcpy(data, in_.data() + at_, size);
        at_ += size;
    }
    // Printable characters only: what a stranger sends may end up in a log.
    std::string get_text(std::size_t room) {
        std::string text;
        bool ended = false;
        for (std::size_t i = 0; i < room && ok_; ++i) {
            const char c = get<char>();
            ended = ended || c == '\0';
            if (!ended) {
                text.push_back(c >= ' ' && c < 0x7f ? c : '?');
            }
        }
        return text;
    }
    // What put_sized_text() wrote, whatever its characters.
    std::string get_sized_text() {
        const auto size = get<std::uint64_t>();
        if (size > left()) {
            ok_ = false;
            return {};
        }
        std::string text(static_cast<std::size_t>(size), '\0');
        get_bytes(text.data(), text.size());
        return text;
    }
    std::span<const std::byte> rest() const { return in_.subspan(at_); }
    std::size_t left() const { return in_.size() - at_; }
    bool ok() const { return ok_; }

private:
    std::span<const std::byte> in_;
    std::size_t at_ = 0;
    bool ok_ = true;
};

}  // namespace deft
