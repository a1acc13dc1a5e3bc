# SPDX-License-Identifier: Apache-2.0
"""The demo's page as a browser shows it: nothing is reported, cut off, empty or written over
something else.

Needs chromium, chromium-driver and python3-selenium (`./dev install ...`); skipped (77) without
them, or without PyTorch."""

import os
import subprocess
import sys
import tempfile
import unittest

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
except ModuleNotFoundError:
    print("skipped: no python3-selenium")
    sys.exit(77)

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUILD = os.environ.get("DEFT_BUILD", os.path.join(ROOT, "build"))
BROWSER, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
MISSING = 3   # the demo's exit code where the machine lacks something

# What every picture of the page holds, in pixels.
PICTURES = """
return [...document.querySelectorAll('svg[role=img]')].map(svg => {
    const box = e => {
        const r = e.getBoundingClientRect()
        return [r.left, r.top, r.right, r.bottom]
    }
    return {name: svg.getAttribute('aria-label'), box: box(svg),
            texts: [...svg.querySelectorAll('text')].map(t => [t.textContent, box(t)]),
            shapes: [...svg.querySelectorAll('rect,polygon,polyline')].map(box)}
})"""


def overlap(one, other):
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across > 1 and down > 3


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="deft page ")
        cls.addClassCleanup(folder.cleanup)
        demo = subprocess.run([sys.executable, os.path.join(ROOT, "perf", "demo", "run.py"),
                               "--build", BUILD, "--out", folder.name, "--model", "small",
                               "--iterations", "60"], capture_output=True, text=True, timeout=400,
                              check=False)
        if demo.returncode == MISSING:
            print("skipped:", demo.stderr.strip())
            sys.exit(77)
        if demo.returncode != 0:
            raise AssertionError(demo.stdout + demo.stderr)
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                         "--disable-gpu", "--window-size=1200,1000"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
        cls.addClassCleanup(cls.browser.quit)
        cls.browser.get("file://" + os.path.join(folder.name, "timeline.html").replace(" ", "%20"))

    def pictures(self):
        return self.browser.execute_script(PICTURES)

    def test_the_browser_reports_nothing(self):
        self.assertEqual(self.browser.title, "deft demo")
        self.assertEqual([line for line in self.browser.get_log("browser")
                          if "favicon" not in line["message"]], [])

    def test_every_run_is_there_and_drawn(self):
        names = [picture["name"] for picture in self.pictures()]
        self.assertEqual(names.count("one iteration as measured"), 4, names)
        self.assertEqual(names.count("time of every iteration"), 1, names)
        # 0: nothing is shaped here
        self.assertIn(names.count("the last iterations"), (0, 4), names)
        for picture in self.pictures():
            left, top, right, bottom = picture["box"]
            self.assertGreater(right - left, 300, picture["name"])
            self.assertGreater(bottom - top, 40, picture["name"])
            self.assertTrue(picture["shapes"] and picture["texts"], picture["name"])

    def test_nothing_is_cut_off_or_written_over_something_else(self):
        for picture in self.pictures():
            left, top, right, bottom = picture["box"]
            for what in [box for _, box in picture["texts"]] + picture["shapes"]:
                inside = (what[0] >= left - 1 and what[1] >= top - 1 and what[2] <= right + 1
                          and what[3] <= bottom + 1)
                self.assertTrue(inside, f"{picture['name']}: {what} lies outside {picture['box']}: "
                                        f"{picture['texts']}")
            for number, (text, box) in enumerate(picture["texts"]):
                for other, another in picture["texts"][number + 1:]:
                    self.assertFalse(overlap(box, another),
                                     f"{picture['name']}: '{text}' and '{other}'")

    def show(self, width, scheme, height=1000):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def test_phone_and_desk_light_and_dark(self):
        self.addCleanup(self.browser.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})
        colours = set()
        for width in (400, 1400):
            for scheme in ("light", "dark"):
                with self.subTest(width=width, scheme=scheme):
                    self.show(width, scheme)
                    wide, high, cards, colour = self.browser.execute_script(
                        "const e = document.documentElement; return [e.scrollWidth, "
                        "e.scrollHeight, document.querySelector('.cards')"
                        ".getBoundingClientRect().top, getComputedStyle(document.body)"
                        ".backgroundColor]")
                    self.assertLessEqual(wide, width, "nothing has to be scrolled sideways")
                    self.assertLess(cards, 500, "figures that matter come first")
                    colours.add(colour)
                    if folder := os.environ.get("DEFT_SCREENSHOTS"):
                        self.show(width, scheme, high)
                        self.browser.save_screenshot(
                            os.path.join(folder, f"demo-{width}-{scheme}.png"))
        self.assertEqual(len(colours), 2)


if __name__ == "__main__":
    if not (os.path.exists(BROWSER) and os.path.exists(DRIVER)):
        print("skipped: no chromium or no chromium-driver")
        sys.exit(77)
    unittest.main(verbosity=2)
