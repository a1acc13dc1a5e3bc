# SPDX-License-Identifier: Apache-2.0
"""The drawings (SVG) of `deft plan`, `deft sim` and `deft advise` as a browser shows them, on a
phone and on a desk, light and dark. With DEFT_SCREENSHOTS pictures of them stay in that folder.

Needs chromium, chromium-driver and python3-selenium; skipped (77) without them.
usage: test_drawings.py DEFT"""

import os
import pathlib
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

DEFT = os.path.abspath(sys.argv.pop(1))
BROWSER, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
WIDTHS = (400, 1400)
JOB = ["--profile", "model:resnet50", "--links", "10GbE,10GbE-gloo", "--ranks", "16"]
DRAWINGS = {"plan": ["plan", *JOB, "--policy", "deft"], "sim": ["sim", *JOB],
            "advise": ["advise", *JOB[1:], "--curve"],
            "far left": ["advise", "model:gpt2", *JOB[2:], "--curve"],
            "far right": ["advise", "model:gpt2,seconds=900", *JOB[2:], "--curve"]}

# What sticks out of the window, is too small to read, or is written over another text.
FAULTS = """
const faults = [], wide = innerWidth
const high = document.documentElement.getBoundingClientRect().height
const texts = [...document.querySelectorAll('text')].filter(
    t => getComputedStyle(t).display != 'none')
const boxes = texts.map(t => t.getBoundingClientRect())
texts.forEach((text, i) => {
    const b = boxes[i]
    if (b.right > wide + 1 || b.left < -1 || b.bottom > high + 1)
        faults.push('sticks out: ' + text.textContent)
    if (b.height < 11) faults.push('too small: ' + text.textContent)
    for (let j = 0; j < i; ++j) {
        const o = boxes[j]
        if (b.left < o.right - 1 && o.left < b.right - 1 && b.top < o.bottom - 3 &&
            o.top < b.bottom - 3)
            faults.push('overlap: ' + text.textContent + ' / ' + texts[j].textContent)
    }
})
for (const shape of document.querySelectorAll('rect,line,polyline')) {
    const b = shape.getBoundingClientRect()
    if (b.right > wide + 2 || b.left < -2) faults.push('sticks out: ' + shape.outerHTML)
}
return faults"""


class Drawings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="deft drawings ")
        cls.addClassCleanup(folder.cleanup)
        cls.files = {}
        for name, words in DRAWINGS.items():
            cls.files[name] = pathlib.Path(folder.name, name + ".svg")
            subprocess.run([DEFT, *words, "--svg", cls.files[name]], capture_output=True,
                           timeout=120, check=True)
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                         "--disable-gpu", "--window-size=1400,1000"):
            options.add_argument(argument)
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
        cls.addClassCleanup(cls.browser.quit)

    def show(self, name, width, scheme):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.browser.get(self.files[name].as_uri())

    def test_they_fit_and_nothing_is_written_over_something_else(self):
        for name in DRAWINGS:
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    with self.subTest(name, width=width, scheme=scheme):
                        self.show(name, width, scheme)
                        self.assertEqual(self.browser.execute_script(FAULTS), [])
                        if folder := os.environ.get("DEFT_SCREENSHOTS"):
                            file = pathlib.Path(folder, f"{name}-{width}-{scheme}.png")
                            self.picture(file, width)

    def picture(self, path, width):
        high = self.browser.execute_script(
            "return Math.ceil(document.documentElement.getBoundingClientRect().height)")
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": high, "deviceScaleFactor": 1, "mobile": False})
        self.browser.save_screenshot(str(path))

    def test_dark_and_light_differ(self):
        paper = "return getComputedStyle(document.querySelector('.paper')).fill"
        for name in DRAWINGS:
            self.show(name, 1400, "light")
            light = self.browser.execute_script(paper)
            self.show(name, 1400, "dark")
            self.assertNotEqual(light, self.browser.execute_script(paper))

    def test_they_say_what_they_show(self):
        for name in DRAWINGS:
            self.show(name, 1400, "light")
            self.assertGreater(len(self.browser.execute_script(
                "return document.querySelector('desc').textContent")), 40)


if __name__ == "__main__":
    if not (os.path.exists(BROWSER) and os.path.exists(DRIVER)):
        print("skipped: no chromium or no chromium-driver")
        sys.exit(77)
    unittest.main(verbosity=2)
