# SPDX-License-Identifier: Apache-2.0
"""tools/house on planted trees: what its figures count, and what its lint of the pages refuses."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, os.fspath(ROOT / "tools" / "house"))

import docs_lint  # noqa: E402
import figures  # noqa: E402
import prose  # noqa: E402
import sources  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deft house ")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class Circles(Tree):
    def circles(self, room_of):
        names = sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*.h"))
        read = [sources.read(name, (self.root / name).read_text()) for name in names]
        return figures.in_circles(figures.include_graph(read, names, room_of))

    def test_one_way_is_no_circle(self):
        self.put("shim/hooks/a.h", '#include "shim/control/b.h"\n')
        self.put("shim/control/b.h", '#include "base/log.h"\n')
        self.put("base/log.h", "#include <string>\n")
        self.assertEqual(self.circles(figures.room_of_shim), [])
        self.assertEqual(self.circles(figures.room_at_top), [])

    def test_a_way_back_over_a_third_room_is_one(self):
        self.put("shim/hooks/a.h", '#include "shim/control/b.h"\n')
        self.put("shim/control/b.h", '#  include "shim/guard/c.h"\n')
        self.put("shim/guard/c.h", '#include "../hooks/a.h"\n')
        self.put("shim/leaf/d.h", '#include "shim/hooks/a.h"\n')
        self.assertEqual(self.circles(figures.room_of_shim),
                         ["shim/control", "shim/guard", "shim/hooks"])
        self.assertEqual(self.circles(figures.room_at_top), [])

    def test_two_rooms_at_the_top(self):
        self.put("base/log.h", '#include "plugin/tcp/device.h"\n')
        self.put("plugin/tcp/device.h", '#include "base/log.h"\n')
        self.assertEqual(self.circles(figures.room_at_top), ["base", "plugin"])

    def test_public_headers_are_found_without_their_folder(self):
        self.put("include/deft/deft.h", '#include "base/log.h"\n')
        self.put("base/log.h", '#include "deft/deft.h"\n')
        self.assertEqual(self.circles(figures.room_at_top), ["base", "include"])


class Functions(unittest.TestCase):
    def only(self, text):
        functions = sources.read("planted.cpp", text).functions
        self.assertEqual(len(functions), 1, functions)
        return functions[0]

    def test_branches_and_lines(self):
        found = self.only("""
// if (this were code) {
int Room::count(const std::map<int, int>& all) const {

    int sum = 0;  /* ? : */
    for (const auto& [key, value] : all) {
        if (key > 1 && value < 2 || value == '?') sum += value;
        // A comment alone on its line.
        while (sum > 100) sum -= key ? 3 : 4;
    }
    switch (sum) {
        case 1:
        case 2: return 0;
    }
    auto&& name = R"(if (a && b) { )";
    return sum;
}
""")
        self.assertEqual((found.name, found.line), ("Room::count", 3))
        # for if && || while ? case case
        self.assertEqual(found.complexity, 9)
        self.assertEqual(found.lines, 13)

    def test_what_a_head_may_look_like(self):
        for text, name in (
                ("Room::Room(int a) noexcept : a_{a}, b_(2), c_{[] { return 1; }} { go(); }",
                 "Room::Room"),
                ("template <class T, class U = int>\nauto pick(T a, U b) -> std::vector<T> { }",
                 "pick"),
                ('extern "C" { int ncclSum(int a) { return a; } }', "ncclSum"),
                ("bool operator==(const A& a, const A& b) { return &a == &b; }", "operator=="),
                ("[[nodiscard]] int look() DEFT_REQUIRES(mutex_) { return 1; }", "look"),
                ("class A { public: ~A() { } };", "~A"),
                ("#if 1\n#define X {\n#endif\nstatic void f(void (*g)(int)) { }", "f")):
            with self.subTest(text=text):
                self.assertEqual(self.only(text).name, name)

    def test_what_is_no_function(self):
        for text in ("const auto f = [](int a) { return a; };", "int a[] = {1, 2};",
                     "namespace a { enum class B { C, D }; }", "int f(int a);",
                     "struct alignas(8) A { int a; };"):
            with self.subTest(text=text):
                self.assertEqual(sources.read("planted.cpp", text).functions, [])


class Classes(unittest.TestCase):
    def members(self, text):
        return {found.name: found.members for found in sources.read("planted.h", text).classes}

    def test_data_members(self):
        found = self.members("""
class DEFT_CAPABILITY("x") Big final : public Base<int> {
public:
    explicit Big(int a) : a_(a) { run(); }
    Big(const Big&) = delete;
    static constexpr int kMost = 3;
    using Map = std::map<int, int>;
    friend class Other;
    enum class State { On, Off };
    struct Inner { int x, y; double z = 1.0; };
    int total() const { return a_ + b_; }
    virtual void stop() noexcept = 0;
    bool operator<(const Big& other) const;

private:
    int a_ = 0, b_{1};
    std::map<int, std::pair<int, int>> table_;
    std::function<void(int, bool)> call_ = [](int, bool) {};
    std::atomic<bool> on_{false};
    const char* names_[2] = {"a", "b"};
    int guarded_ DEFT_GUARDED_BY(mutex_) = 0;
    alignas(64) unsigned char bytes_[8] = {};
    unsigned flag_ : 1;
    struct Made { int one; } made_;
};
struct Forward;
""")
        self.assertEqual(found["Inner"], 3)
        self.assertEqual(found["Made"], 1)
        self.assertEqual(found["Big"], 10)
        self.assertNotIn("Forward", found)


class Prose(unittest.TestCase):
    PAGE = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# A heading counts for nothing

It takes 0.1 s. deft waits. Four words are here. One
goes on, e.g. over `a. b` lines (see [the other page](other.md#x)). Why?

- An item is a paragraph
- and so is the next.

| cell | another |
|---|---|
| one two | `a|b` three |

    this is code. It has no sentence.
"""

    def test_sentences(self):
        self.assertEqual(prose.sentence_lengths(self.PAGE), [4, 2, 4, 12, 1, 5, 5])

    def test_cells(self):
        self.assertEqual(prose.cells("| one two | `a|b` three \\| four |"),
                         ["one two", "`a b` three   four"])
        self.assertEqual(prose.long_cells(self.PAGE), [])
        found = prose.long_cells(self.PAGE + "\n| a | " + "word " * 31 + "|\n")
        self.assertEqual([offence.line for offence in found], [16])

    def test_columns(self):
        self.assertEqual(prose.wide_lines("x" * 100 + "\n" + "\u00e9" * 100), [])
        self.assertEqual([found.line for found in prose.wide_lines("x\n" + "x" * 101)], [2])

    def test_percentile(self):
        self.assertEqual(figures.percentile(range(1, 11), 90), 9)
        self.assertEqual(figures.percentile([5], 90), 5)


class Lint(Tree):
    def findings(self, text, page="docs/page.md"):
        self.put(page, text)
        return [line.split(": ", 1) for line in docs_lint.findings([page], self.root)]

    def test_a_wide_line_is_named_by_its_place(self):
        self.assertEqual(self.findings("a\n" + "word " * 21 + "\n"),
                         [["docs/page.md:2", "105 columns, 100 are allowed"]])

    def test_what_nobody_can_break_is_allowed(self):
        self.assertEqual(self.findings("| " + "word " * 30 + "|\n"), [])
        self.assertEqual(self.findings("[here](https://example.org/" + "x" * 100 + ")\n"), [])

    def test_links(self):
        self.put("docs/other.md", "# Why `deft` waits, and when\n")
        self.assertEqual(self.findings("[a](other.md#why-deft-waits-and-when) [b](../docs)\n"
                                       "`[c](gone.md)` [d](https://example.org)\n"), [])
        self.assertEqual(self.findings("[a](gone.md)\n[b](other.md#gone)\n[c](#gone)\n"),
                         [["docs/page.md:1", "there is no file docs/gone.md"],
                          ["docs/page.md:2", "docs/other.md has no heading #gone"],
                          ["docs/page.md:3", "docs/page.md has no heading #gone"]])


    def test_paths_between_backquotes(self):
        for name in ("shim/hooks/hook.cpp", "shim/hooks/hook.h", "base/log.h"):
            self.put(name, "")
        self.assertEqual(self.findings("`shim/hooks/hook.{h,cpp}` `shim/hooks/hook` `shim/hooks/`\n"
                                       "`shim/*/hook.h` `and/or` `build/tools/deft` `./dev`\n"), [])
        self.assertEqual(self.findings("`base/log.cpp`\n`shim/hooks/hook.{h,c}`\n`shim/gone/`\n"),
                         [["docs/page.md:1", "there is no file base/log.cpp"],
                          ["docs/page.md:2", "there is no file shim/hooks/hook.c"],
                          ["docs/page.md:3", "there is no file shim/gone"]])

    def test_what_a_room_lists(self):
        for name in ("shim/hooks/hook.cpp", "shim/hooks/list.def", "shim/cuda/driver.h"):
            self.put(name, "")
        page = "shim/hooks/README.md"
        self.assertEqual(self.findings("Modes `off`, `exact`.\n\n* `hook` `list.def` `nccl*`\n"
                                       "  `DEFT_RDMA=none` `hook()` `HookRef`\n", page), [])
        self.assertEqual(self.findings("* `hook.cpp` and\n  `gone`\n* `driver`\n", page),
                         [["shim/hooks/README.md:2", "shim/hooks has no file gone"],
                          ["shim/hooks/README.md:3", "shim/hooks has no file driver"]])
        self.assertEqual(self.findings("* `cuda` `driver` `hooks`\n", "shim/README.md"), [])
        self.assertEqual(self.findings("* `gone`\n", "tests/README.md"), [])


class Whole(Tree):
    def shown(self, *arguments):
        text = io.StringIO()
        sys.argv = ["figures.py", "--root", os.fspath(self.root), *arguments]
        with contextlib.redirect_stdout(text):
            figures.main()
        return text.getvalue()

    def test_the_table(self):
        self.put("plugin/a.cpp", "struct Small { int a; };\nvoid f() {\n    if (a) b();\n}\n")
        self.put("tests/b.cpp", "struct Large { int a, b, c; };\n")
        self.put("README.md", "# Name\n\nOne two three.\n")
        shown = self.shown()
        for expected in ("1 (Small, plugin/a.cpp:1)", "0.0 % (0 of 1)", "3 (f, plugin/a.cpp:2)",
                         "median 3, p90 3", "rooms of shim/ in circles"):
            self.assertIn(expected, shown)

    def test_the_lists(self):
        self.put("plugin/a.cpp", "void f() { " + "if (a) b(); " * 15 + "}\n")
        self.put("README.md", "One two three.\n")
        self.assertIn("| f ", self.shown("--functions"))
        self.assertIn("| README.md |", self.shown("--pages"))
        self.assertIn("data members", self.shown("--classes"))

    def test_an_empty_tree(self):
        self.assertIn("0 (none, :0)", self.shown())


if __name__ == "__main__":
    unittest.main()
