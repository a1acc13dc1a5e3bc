# SPDX-License-Identifier: Apache-2.0
"""The page of `deft report --html` as a browser shows it, on a phone and on a desk, light and
dark. With DEFT_SCREENSHOTS pictures of it stay in that folder.

Needs chromium, chromium-driver and python3-selenium; skipped (77) without them.
usage: test_report.py DEFT"""

import json
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

# What sticks out of the window, or is written over another.
FAULTS = """
const box = e => e.getBoundingClientRect(), wide = document.documentElement.clientWidth
const faults = []
for (const e of document.querySelectorAll('h1,h2,p,.card,.line,.line span,.axis,.bar i')) {
    const b = box(e)
    if (b.right > wide + 1 || b.left < -1) faults.push('sticks out: ' + e.outerHTML)
}
for (const line of document.querySelectorAll('.line')) {
    const [name, value] = [box(line.querySelector('.name')), box(line.querySelector('.value'))]
    if (name.right > value.left + 1 && name.bottom > value.top + 1 && value.bottom > name.top + 1)
        faults.push('overlap: ' + line.textContent)
    if (wide > 600 && name.bottom - name.top > 30) faults.push('wraps: ' + line.textContent)
}
return faults"""


def spread(median, apart, n=100):
    return {"median": median, "p10": median - apart, "p90": median + apart, "n": n}


def record(rank):
    """What a rank of a job under a plan leaves (docs/observe.md)."""
    plan = {"state": "running", "reason": "", "policy": "best", "predicted_ms": 78.0,
            "baseline_ms": 101.0, "bound_ms": 70.0, "updates_per_iteration": 0.5, "max_delay": 1,
            "max_merge": 2, "switched": 1, "ended": 0, "guard_decisions": 12, "before_ms": 100.0,
            "before_p10_ms": 96.0, "before_p90_ms": 107.0, "before_n": 50}
    buckets = [{"position": i, "communicator": "c0ffee", "bytes": 25 << 20, "count": 1,
                "type": "float32", "op": "sum", "in_place": True,
                "ready_ms": spread(8.0 + 4 * i + rank, 1), "transfer_ms": spread(9.0, 1)}
               for i in range(8)]
    links = [{"name": name, "kind": "tcp", "bytes_sent": sent, "bytes_received": sent,
              "chunks_sent": 9, "busy_ms": 100.0, "resent_bytes": 1 << 20, "transitions": 4,
              "speed_mbps": 1000} for name, sent in (("eth0", 3 << 30), ("eth1", 1 << 30))]
    return {"format": "deft-observe", "version": 1, "library": {"version": "0.1.0", "path": "/x"},
            "nccl": {"version": 22809, "path": "/usr/lib/x86_64-linux-gnu/libnccl.so.2"},
            "host": f"node-{rank:03}.partition.cluster.example.org", "rank": rank, "ranks": 2,
            "pid": 1, "mode": "deft", "gradients": "trust", "calls": {"ncclAllReduce": 60},
            "job": {"id": "4711", "command": "python3 train.py --model " + "large" * 20,
                    "started": "2026-11-26T15:07:50Z", "written": "2026-11-26T18:00:00Z"},
            "plugin": {"loaded": True, "abi": 11, "calls": 9},
            "iterations": {"seen": 3000, "cycle_length": 8, "stable": True,
                           "time_ms": spread(80.0, 6), "compute_ms": spread(50.0, 2),
                           "exposed_ms": spread(28.0, 2), "coverage_rate": spread(1.4, 0.1)},
            "buckets": buckets, "links": links, "plans": [plan]}


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="deft report ")
        cls.addClassCleanup(folder.cleanup)
        files = []
        for rank in (0, 1):
            files.append(pathlib.Path(folder.name, f"{rank}.json"))
            files[-1].write_text(json.dumps(record(rank)))
        page = subprocess.run([DEFT, "report", "--html", *files], capture_output=True, text=True,
                              timeout=60, check=True)
        cls.page = pathlib.Path(folder.name, "report.html")
        cls.page.write_text(page.stdout)
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                         "--disable-gpu", "--window-size=1400,1000"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
        cls.addClassCleanup(cls.browser.quit)
        cls.browser.get(cls.page.as_uri())

    def show(self, width, scheme):
        """A window of that width, whatever the browser thinks is the least one."""
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def colours(self):
        return self.browser.execute_script(
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")

    def test_it_fits_and_nothing_is_written_over_something_else(self):
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                with self.subTest(width=width, scheme=scheme):
                    self.show(width, scheme)
                    self.assertEqual(self.browser.execute_script(FAULTS), [])
                    self.assertLessEqual(self.browser.execute_script(
                        "return document.documentElement.scrollWidth"), width)
                    if folder := os.environ.get("DEFT_SCREENSHOTS"):
                        self.picture(pathlib.Path(folder, f"report-{width}-{scheme}.png"))

    def picture(self, path):
        high = self.browser.execute_script("return document.documentElement.scrollHeight")
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": self.browser.execute_script("return innerWidth"), "height": high,
            "deviceScaleFactor": 1, "mobile": False})
        self.browser.save_screenshot(str(path))

    def test_dark_and_light_differ(self):
        self.show(1400, "light")
        light = self.colours()
        self.show(1400, "dark")
        self.assertNotEqual(light, self.colours())

    def test_the_verdict_is_on_the_first_screen(self):
        for width in WIDTHS:
            self.show(width, "light")
            bottom = self.browser.execute_script(
                "return document.querySelector('.cards').getBoundingClientRect().bottom")
            self.assertLess(bottom, 1000, "figures that matter come first")

    def test_the_browser_reports_nothing(self):
        self.assertEqual(self.browser.title, "deft: job 4711, 2 ranks, mode deft")
        self.assertEqual([line for line in self.browser.get_log("browser")
                          if "favicon" not in line["message"]], [])


if __name__ == "__main__":
    if not (os.path.exists(BROWSER) and os.path.exists(DRIVER)):
        print("skipped: no chromium or no chromium-driver")
        sys.exit(77)
    unittest.main(verbosity=2)
