# SPDX-License-Identifier: Apache-2.0
"""Whole jobs under faults: perf/jobs/replay on two hosts, in mode exact of deft and without
deft; every sum is checked by the job."""

import json
import os
import threading
import time

from ..common import ranks
from . import scene as scenes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
ITERATION = 0.1    # seconds, about, on links of 100 Mbit/s
BUCKETS = 5
BUCKET = 200_000   # bytes
COMPUTE = 10.0     # milliseconds


def profile(folder):
    """Writes the iteration that is replayed; returns the path."""
    buckets = [{"bytes": BUCKET, "ready_ms": 0.6 * COMPUTE * (number + 1) / BUCKETS}
               for number in range(BUCKETS)]
    path = os.path.join(folder, "iteration.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"format": "deft-profile", "version": 1, "name": "faults",
                   "source": "perf/faults", "forward_ms": 0.4 * COMPUTE,
                   "backward_ms": 0.6 * COMPUTE, "buckets": buckets}, file)
    return path


class JobScene(scenes.Scene):
    """A Scene whose job is a whole one, made by ranks.run in this thread; the case's function
    runs in another."""

    ended = False
    began = False
    outlasted = False

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.ended:
            time.sleep(0.05)

    def act(self):
        """The case, once gradients flow."""
        end = time.monotonic() + scenes.SETUP
        while self._sent() < 3_000_000 and not self.ended and time.monotonic() < end:
            time.sleep(0.05)
        if not self.ended:
            self.began = True
            self.case.fault(self)
            self.outlasted = not self.ended


def run(build, case, where, transport, seed):
    """As scene.run()."""
    scene = JobScene(build, case, where, transport, seed)
    try:
        if case.before:
            case.before(scene)
        parts = ranks.Parts(build, ROOT)
        still = len(scene.bad) == scene.links and case.still
        iterations = int((scenes.LEAD + scenes.TAIL +
                          (case.moves if still else case.lasts)) / ITERATION)

        def job(results, folder):
            path = os.path.join(folder, "iteration.json")
            return [parts.replay, "--profile", path if os.path.exists(path) else profile(folder),
                    "--iterations", str(iterations), "--alone", "1", "--skip", "0", "--id-file",
                    os.path.join(folder, "id"), "--json", results]

        acting = threading.Thread(target=scene.act)
        scene.mark("start")
        acting.start()
        done, words = None, ""
        try:
            done = ranks.run(scene.network, parts, job,
                             mode="exact" if transport == scenes.DEFT else None,
                             settings={"SOFTDEV_DEADLINE": "400",
                                       **(case.settings if transport == scenes.DEFT else {})},
                             timeout=scenes.SETUP + 3 * iterations * ITERATION + 3 * case.lasts +
                             30)
        except ranks.RunFailed as error:
            words = str(error)
        finally:
            scene.ended = True
            acting.join()
        if not scene.began and not words:
            raise scenes.RunFailed("the job ended before the fault")
        result = result_of(scene, done, words)
        scenes.check_injected(case, transport, result)
        return result
    finally:
        scene.close()


def result_of(scene, done, words):
    """In the form of scene.run(): an iteration stands for a message, elements that are not the
    sum for wrong bytes."""
    result = {"case": scene.case.name, "where": scene.where, "transport": scene.transport,
              "seed": scene.seed, "code": 0 if done else 1,
              "timed_out": "did not end in time" in words, "errors": [], "steady": None,
              "last_words": [line.strip() for line in words.splitlines()[-3:]],
              "warnings": done.warnings if done else [],
              "relays": [held.counters() for _, held in sorted(scene.network.relays.items())],
              "doors": scene.count_doors(), "began": scene.began, "outlasted": scene.outlasted,
              "seconds": round(time.monotonic() - scene.marks["start"], 2)}
    if done:
        figures = done.results
        took = sorted(figures["iteration_ms"]["raw"])

        def at(share):
            return took[min(len(took) - 1, int(share * len(took)))]

        wrong = figures["elements_not_the_sum"] + (0 if figures["replicas_equal"] else 1)
        result["steady"] = {"message_ms": {"n": len(took), "p50": at(0.5), "p99": at(0.99),
                                           "max": took[-1],
                                           "samples": figures["iteration_ms"]["raw"]},
                            "wrong_bytes": wrong, "seconds": done.seconds,
                            "longest_gap_ms": took[-1]}
    elif not result["timed_out"]:
        result["errors"] = [{"side": 0, "text": " ".join(result["last_words"])[-300:],
                             "after_s": 0.0, "progress": None}]
    return result
