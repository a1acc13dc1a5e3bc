// SPDX-License-Identifier: Apache-2.0
// As much XML as topology files need: elements, attributes, text. Comments, CDATA sections and
// declarations are passed over, and no entity is ever expanded but the five that XML has.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deft::discovery {

struct XmlElement {
    std::string name;
    int line = 0;
    std::vector<std::pair<std::string, std::string>> attributes;
    std::vector<XmlElement> children;
    std::string text;  // between its tags, without that of its children; blank text is left out

    // The attribute's value, or an empty string.
    std::string_view operator[](std::string_view attribute) const;
    bool has(std::string_view attribute) const;
};

// Parses a whole document; false and one line ("line 12: <pci> is closed by </cpu>") if it is not
// well-formed, or nested deeper or with more elements than any topology.
bool parse_xml(std::string_view text, XmlElement& root, std::string& problem);

}  // namespace deft::discovery
