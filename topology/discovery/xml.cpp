// SPDX-License-Identifier: Apache-2.0
#include "topology/discovery/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace deft::discovery {
namespace {

constexpr std::size_t kMaxDepth = 64;
// A host of 64 sockets has a tenth of it. What a file of the largest size could otherwise hold
// would take gigabytes.
constexpr std::size_t kMostElements = 500000;
constexpr std::size_t kMostAttributes = 64;

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    bool document(XmlElement& root) { return skip_to_element() && element(root, 0) && only_rest(); }
    const std::string& problem() const { return problem_; }

private:
    bool fail(std::string what) {
        problem_ = fmt::format("line {}: {}", line_, what);
        return false;
    }
    bool at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
    bool ended() const { return at_ >= text_.size(); }
    void advance(std::size_t count) {
        const std::string_view passed = text_.substr(at_, count);
        line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
        at_ = std::min(text_.size(), at_ + count);
    }
    void skip_space() {
        while (!ended() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
            advance(1);
        }
    }
    bool skip_past(std::string_view end, const char* what) {
        const std::size_t found = text_.find(end, at_);
        if (found == std::string_view::npos) {
            return fail(fmt::format("{} is not closed", what));
        }
        advance(found - at_ + end.size());
        return true;
    }
    // Passes over what is no element; stops at '<' of one, at "</", or at the end. Text that is
    // more than blank goes into `seen`.
    bool skip_to_markup(std::string* seen = nullptr) {
        for (;;) {
            const std::size_t open = std::min(text_.find('<', at_), text_.size());
            const std::string_view between = text_.substr(at_, open - at_);
            if (seen != nullptr && between.find_first_not_of(" \t\r\n") != between.npos) {
                seen->append(between);
            }
            advance(open - at_);
            if (at("<!--")) {
                if (!skip_past("-->", "a comment")) {
                    return false;
                }
            } else if (at("<![CDATA[")) {
                if (!skip_past("]]>", "a CDATA section")) {
                    return false;
                }
            } else if (at("<?") || at("<!")) {
                if (!skip_past(">", "a declaration")) {
                    return false;
                }
            } else {
                return true;
            }
        }
    }
    bool skip_to_element() {
        skip_space();
        if (!ended() && text_[at_] != '<') {
            return fail("this is not XML");
        }
        if (!skip_to_markup()) {
            return false;
        }
        return ended() || at("</") ? fail("there is no element") : true;
    }
    bool only_rest() {
        if (!skip_to_markup()) {
            return false;
        }
        return ended() ? true : fail("something follows the outermost element");
    }
    bool name(std::string& out) {
        const std::size_t begin = at_;
        while (!ended() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                            std::string_view("_:-.").find(text_[at_]) != std::string_view::npos)) {
            ++at_;
        }
        out = text_.substr(begin, at_ - begin);
        return out.empty() ? fail("a name is missing") : true;
    }
    bool value(std::string& out) {
        const char quote = ended() ? '\0' : text_[at_];
        if (quote != '"' && quote != '\'') {
            return fail("an attribute's value is not quoted");
        }
        const std::size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) {
            return fail("an attribute's value is not closed");
        }
        const std::string_view raw = text_.substr(at_ + 1, end - at_ - 1);
        if (raw.find('<') != std::string_view::npos) {
            return fail("an attribute's value contains '<'");
        }
        advance(end + 1 - at_);
        for (std::size_t i = 0; i < raw.size(); ++i) {
            static constexpr std::pair<std::string_view, char> entities[] = {
                {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
            char letter = raw[i];
            for (const auto& [entity, meaning] : entities) {
                if (raw.substr(i).starts_with(entity)) {
                    letter = meaning;
                    i += entity.size() - 1;
                    break;
                }
            }
            out.push_back(letter);
        }
        return true;
    }
    bool element(XmlElement& out, std::size_t depth) {
        if (depth == kMaxDepth) {
            return fail("nested too deeply");
        }
        if (++elements_ > kMostElements) {
            return fail(fmt::format("more than {} elements, which no topology has", kMostElements));
        }
        out.line = line_;
        advance(1);
        if (!name(out.name)) {
            return false;
        }
        bool empty = false;
        return attributes(out, empty) && (empty || content(out, depth));
    }

    // `empty`: the element ends with them.
    bool attributes(XmlElement& out, bool& empty) {
        for (;;) {
            skip_space();
            if (at("/>")) {
                advance(2);
                empty = true;
                return true;
            }
            if (at(">")) {
                advance(1);
                return true;
            }
            if (ended()) {
                return fail(fmt::format("<{}> is cut off", out.name));
            }
            if (out.attributes.size() == kMostAttributes) {
                return fail(
                    fmt::format("<{}> has more than {} attributes", out.name, kMostAttributes));
            }
            std::string key;
            if (!name(key)) {
                return false;
            }
            if (out.has(key)) {
                return fail(fmt::format("<{}> has {} twice", out.name, key));
            }
            auto& text = out.attributes.emplace_back(key, "").second;
            skip_space();
            if (!at("=")) {
                return fail(fmt::format("attribute {} has no value", key));
            }
            advance(1);
            skip_space();
            if (!value(text)) {
                return false;
            }
        }
    }

    // Children, up to the closing tag.
    bool content(XmlElement& out, std::size_t depth) {
        for (;;) {
            if (!skip_to_markup(&out.text)) {
                return false;
            }
            if (ended()) {
                return fail(fmt::format("<{}> of line {} is not closed", out.name, out.line));
            }
            if (at("</")) {
                return closing(out);
            }
            if (!element(out.children.emplace_back(), depth + 1)) {
                return false;
            }
        }
    }

    bool closing(const XmlElement& out) {
        advance(2);
        std::string closed;
        if (!name(closed)) {
            return false;
        }
        skip_space();
        if (closed != out.name || !at(">")) {
            return fail(
                fmt::format("<{}> of line {} is closed by </{}>", out.name, out.line, closed));
        }
        advance(1);
        return true;
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int line_ = 1;
    std::size_t elements_ = 0;
    std::string problem_;
};

}  // namespace

std::string_view XmlElement::operator[](std::string_view attribute) const {
    for (const auto& [key, value] : attributes) {
        if (key == attribute) {
            return value;
        }
    }
    return {};
}

bool XmlElement::has(std::string_view attribute) const {
    return std::any_of(attributes.begin(), attributes.end(),
                       [&](const auto& each) { return each.first == attribute; });
}

namespace {

// What a file is that begins like this and is no XML of ours; empty: it may be some.
const char* other_format(std::string_view text) {
    using namespace std::string_view_literals;
    return text.starts_with("\x1f\x8b") ? "this is compressed: unpack it with gunzip"
           : text.starts_with(
                 "\xfd"
                 "7zXZ")
               ? "this is compressed: unpack it with unxz"
           : text.starts_with("BZh") ? "this is compressed: unpack it with bunzip2"
           : text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
                   text.starts_with("<\0"sv)
               ? "this is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"
               : "";
}

}  // namespace

bool parse_xml(std::string_view text, XmlElement& root, std::string& problem) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text.starts_with(kByteOrderMark)) {
        text.remove_prefix(kByteOrderMark.size());
    }
    problem = other_format(text);
    if (!problem.empty()) {
        return false;
    }
    Parser parser(text);
    const bool good = parser.document(root);
    problem = parser.problem();
    return good;
}

}  // namespace deft::discovery
