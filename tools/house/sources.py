# SPDX-License-Identifier: Apache-2.0
"""Reads C++ well enough to count: functions with their length and branches, classes with their data
members, and includes. It is no compiler: it follows brackets and keywords, and expands no macro."""

import dataclasses
import re

BRANCHES = {"if", "for", "while", "case", "catch", "&&", "||", "?"}
TYPE_KEYWORDS = {"class", "struct", "union", "enum"}
NO_DATA = {"using", "typedef", "friend", "static", "static_assert", "extern", "template", "concept"}
ANNOTATION = re.compile(r"[A-Z][A-Z0-9_]+$")  # a macro such as DEFT_GUARDED_BY

TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")
      | (?P<text>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<number>\.?\d(?:'?[\w.])*)
      | (?P<character>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign>::|->|&&|\|\||<=>|[=!<>]=|[-+*/%^&|]=|[^\s])""",
    re.VERBOSE | re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)


@dataclasses.dataclass
class Function:
    name: str
    path: str
    line: int
    lines: int       # of code, from the first of the head to the last bracket
    complexity: int  # 1 and 1 for each of BRANCHES in the body, lambdas in it included


@dataclasses.dataclass
class Class:
    name: str
    path: str
    line: int
    members: int  # data members that each object has; those of nested classes are not among them


@dataclasses.dataclass
class Token:
    text: str
    line: int       # of its first character
    last_line: int  # of its last one


@dataclasses.dataclass
class Source:
    path: str
    includes: list
    functions: list
    classes: list


def tokens_of(text):
    # Directives stay as empty lines, so that line numbers remain right.
    text = DIRECTIVE.sub(lambda match: "\n" * match.group().count("\n"), text)
    tokens, line, at = [], 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        if match.lastgroup == "skip":
            continue
        written = match.group()
        literal = match.group("raw") or match.group("text") or match.group("character")
        tokens.append(Token('""' if literal else written, line, line + written.count("\n")))
    return tokens


def closing(tokens, start, opening="{", close="}"):
    """The index of the bracket that closes the one at `start`; the last token if there is none."""
    depth = 0
    for index in range(start, len(tokens)):
        if tokens[index].text == opening:
            depth += 1
        elif tokens[index].text == close:
            depth -= 1
            if depth == 0:
                return index
    return len(tokens) - 1


def without_templates(head):
    """The head of a declaration without `template <...>`, attributes and annotations, and with
    every other list of template arguments and every group of round brackets as one token."""
    kept, index = [], 0
    while index < len(head):
        text = head[index].text
        following = head[index + 1].text if index + 1 < len(head) else ""
        if following == "(" and (text == "alignas" or (kept and ANNOTATION.match(text))):
            index = (group_end(head, index + 1) or index + 1) + 1
            continue
        if text in ("<", "(") and kept:
            end = group_end(head, index)
            if end is not None:
                if text == "<" and kept[-1].text == "template":
                    kept.pop()
                else:
                    kept.append(Token(text + (">" if text == "<" else ")"), head[index].line, 0))
                index = end + 1
                continue
        if text == "[" and following == "[":
            index = closing(head, index, "[", "]") + 1
            continue
        kept.append(head[index])
        index += 1
    return kept


def group_end(head, start):
    """Where the `<` or `(` at `start` is closed; None for a `<` that is a comparison."""
    pairs = {"<": ">", "(": ")", "[": "]", "{": "}"}
    stack = []
    for index in range(start, len(head)):
        text = head[index].text
        if text in ("(", "[", "{") or (text == "<" and (not stack or stack[-1] == ">")):
            stack.append(pairs[text])
        elif stack and text == stack[-1]:
            stack.pop()
            if not stack:
                return index
        elif text == ";" or (text in ("&&", "||") and stack == [">"]):
            return None
    return None


def texts_of(head):
    return [token.text for token in without_templates(head)]


def is_function(texts):
    """Whether a head that a `{` follows is that of a function."""
    if "operator" in texts:
        return True
    if "()" not in texts:
        return False
    return "=" not in texts[: texts.index("()")]


def in_initializers(texts):
    """Behind the `:` of a constructor, where a `{` may belong to a member."""
    if "()" not in texts or ":" not in texts[texts.index("()"):]:
        return False
    return bool(re.match(r"\w+$|<>$", texts[-1])) if texts else False


def name_of_function(head):
    name = []
    for index, token in enumerate(head):
        if token.text == "operator":
            scope = name if name and name[-1] == "::" else []
            name = [*scope, token.text, head[index + 1].text if index + 1 < len(head) else ""]
            break
        if token.text == "(" and name and not ANNOTATION.match(head[index - 1].text):
            break
        if re.match(r"[\w~]", token.text) or token.text == "::":
            joins = name and (token.text == "::" or name[-1] in ("::", "~"))
            name = name + [token.text] if joins else [token.text]
        elif token.text == "<":
            continue
    return "".join(name) or "?"


def name_of_type(texts):
    at = max(index for index, text in enumerate(texts) if text in TYPE_KEYWORDS)
    words = []
    for text in texts[at + 1:]:
        if text in (":", "final"):
            break
        if re.match(r"\w+$", text):
            words.append(text)
    return words[-1] if words else "(anonymous)"


def data_members(head):
    """How many data members a declaration in a class makes (`int a, b;` makes two)."""
    texts = texts_of(head)
    while len(texts) > 1 and texts[1] == ":" and texts[0] in ("public", "protected", "private"):
        texts = texts[2:]
    if not texts or texts[0] in NO_DATA or "operator" in texts or "static" in texts:
        return 0
    if texts[0] in TYPE_KEYWORDS and "{}" not in texts and len(texts) < 3:
        return 0  # a forward declaration
    if texts[-1] == "{}" and any(text in TYPE_KEYWORDS for text in texts):
        return 0  # a nested type that is only declared
    names = 1
    for index, text in enumerate(texts):
        if text in ("=", ":", "{}"):
            # The value of the first one; a comma behind it may begin the next.
            break
        if text == "()" and texts[index - 1] != "decltype":
            return 0
    names += sum(1 for text in texts if text == ",")
    return names


class Reader:
    def __init__(self, path, text):
        self.path = path
        self.tokens = tokens_of(text)
        self.functions = []
        self.classes = []

    def read_scope(self, index, owner):
        """Declarations from `index` on, up to the bracket that ends the scope."""
        head = []
        while index < len(self.tokens):
            token = self.tokens[index]
            if token.text == "}":
                return index
            if token.text == ";":
                if owner is not None:
                    owner.members += data_members(head)
                head = []
            elif token.text == "{":
                index, head = self.read_braces(index, head, owner)
            else:
                head.append(token)
            index += 1
        return index

    def read_braces(self, index, head, owner):
        """What begins with the `{` at `index`. Returns its end, and the head as it goes on."""
        texts = texts_of(head)
        if "namespace" in texts or texts == ["extern", '""']:
            return self.read_scope(index + 1, None), []
        types = [text for text in texts if text in TYPE_KEYWORDS]
        if types and "()" not in texts and "=" not in texts:
            made = Class(name_of_type(texts), self.path, head[0].line, 0)
            if "enum" in types:
                end = closing(self.tokens, index)
            else:
                self.classes.append(made)
                end = self.read_scope(index + 1, made)
            return end, self.tail(head)
        end = closing(self.tokens, index)
        if is_function(texts) and not in_initializers(texts):
            self.add_function(head, index, end)
            return end, []
        return end, self.tail(head)

    @staticmethod
    def tail(head):
        """The head with what is between the brackets left out."""
        return [*head, Token("{}", head[-1].line if head else 0, 0)]

    def add_function(self, head, start, end):
        head = self.without_label(head)
        body = self.tokens[start: end + 1]
        lines = set()
        for token in [*head, *body]:
            lines.update(range(token.line, max(token.line, token.last_line) + 1))
        lines.discard(0)
        branches = 0
        for index, token in enumerate(body):
            if token.text not in BRANCHES:
                continue
            if token.text == "&&" and body[index - 1].text in ("auto", ">"):
                continue  # a reference to what may be moved from
            branches += 1
        self.functions.append(Function(name_of_function(head), self.path, head[0].line, len(lines),
                                       1 + branches))

    @staticmethod
    def without_label(head):
        while len(head) > 2 and head[1].text == ":":
            head = head[2:]
        return head


def read(path, text):
    reader = Reader(path, text)
    index = 0
    while index < len(reader.tokens):  # a bracket too many ends the outermost scope early
        index = reader.read_scope(index, None) + 1
    return Source(path, INCLUDE.findall(text), reader.functions, reader.classes)
