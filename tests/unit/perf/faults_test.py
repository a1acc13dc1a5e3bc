# SPDX-License-Identifier: Apache-2.0
"""What perf/faults says of a run, from made-up results. Runs no network."""

import io
import json
import os
import tempfile
import unittest

from perf.faults import cases, report, scene, verdict

NOBODY_SPEAKS = {"side": 0, "text": "nothing moved for 46 s: [send 3 of 9 done, 1 in flight]",
                 "after_s": 46.0, "progress": None}


def refused(side, after, wrong=0):
    return {"side": side, "text": "deft (v11): test returned ncclRemoteError (6)", "after_s": after,
            "progress": {"wrong_bytes": wrong}}


def run_of(name="silent", where="both", transport="deft", code=1, errors=(), ended=False, wrong=0,
           words=()):
    steady = {"message_ms": {"n": 3, "p50": 1.0, "p99": 2.0, "max": 3.0,
                             "samples": [1.0, 2.0, 3.0]}, "wrong_bytes": wrong,
              "seconds": 1.0, "longest_gap_ms": 3.0} if ended else None
    return verdict.digest({"case": name, "where": where, "transport": transport, "seed": 1,
                           "code": 0 if ended else code, "timed_out": False, "steady": steady,
                           "errors": list(errors), "last_words": list(words), "relays": [],
                           "began": True})


def complaints(name, ours, others=()):
    return verdict.complaints(cases.CASES[name], ours, list(others))


class Verdict(unittest.TestCase):
    def test_outcomes(self):
        self.assertEqual(run_of(ended=True)["outcome"], verdict.DONE)
        self.assertEqual(run_of(errors=[refused(0, 1.0), NOBODY_SPEAKS])["outcome"], verdict.KILLED)
        self.assertEqual(run_of(errors=[NOBODY_SPEAKS])["outcome"], verdict.HUNG)
        died = "netperf: a process died of signal {} (x)"
        self.assertEqual(run_of(words=[died.format(11)])["outcome"], verdict.CRASHED)
        self.assertEqual(run_of(words=[died.format(9)], errors=[refused(0, 0.1)])["outcome"],
                         verdict.KILLED)

    def test_a_job_may_fall_only_where_socket_falls_and_may_never_hang(self):
        well, killed = run_of(ended=True), run_of(errors=[refused(0, 1.0)])
        hung = run_of(errors=[NOBODY_SPEAKS])
        self.assertEqual(complaints("silent", [well], [killed]), [])
        self.assertEqual(complaints("silent", [killed], [well]), ["killed where Socket survives"])
        self.assertEqual(complaints("silent", [killed], [hung]), [])
        self.assertEqual(complaints("silent", [killed]), ["killed"])
        self.assertEqual(complaints("silent", [hung], [hung]), ["hung"])

    def test_wrong_bytes_count_wherever_they_are(self):
        self.assertEqual(complaints("silent", [run_of(ended=True, wrong=3)]), ["3 bytes wrong"])
        self.assertEqual(run_of(errors=[refused(1, 1.0, wrong=5)])["wrong_bytes"], 5)
        unchecked = run_of("silent-bit-errors-unchecked", ended=True, wrong=3)
        self.assertEqual(complaints("silent-bit-errors-unchecked", [unchecked]), [])
        self.assertEqual(verdict.count([unchecked], cases.CASES)["wrong"], 0)

    def test_an_error_has_a_bound_for_every_side_that_lives(self):
        self.assertEqual(complaints("kill-sender",
                                    [run_of("kill-sender", errors=[refused(1, 0.1)])]), [])
        self.assertIn("after 5.00 s",
                      complaints("kill-sender",
                                 [run_of("kill-sender", errors=[refused(1, 5.0)])])[0])
        self.assertIn("receiver never",
                      complaints("kill-sender",
                                 [run_of("kill-sender", errors=[refused(0, 0.1)])])[0])
        one_side = run_of("host-gone", errors=[refused(0, 10.0), {**NOBODY_SPEAKS, "side": 1}])
        self.assertIn("receiver never", complaints("host-gone", [one_side])[0])
        self.assertEqual(complaints("kill-sender", [run_of("kill-sender", ended=True)]),
                         ["the job ended well: the fault was none"])

    def test_a_fault_that_did_not_happen_is_no_run(self):
        nothing = {"ab": {"in_black_hole": 0}, "ba": {"in_black_hole": 0}}
        result = {"began": True, "outlasted": True, "code": 0, "doors": 0,
                  "relays": [nothing, nothing]}
        with self.assertRaisesRegex(scene.RunFailed, "not injected"):
            scene.check_injected(cases.CASES["silent"], scene.DEFT, result)
        with self.assertRaisesRegex(scene.RunFailed, "no door"):
            scene.check_injected(cases.CASES["strangers"], scene.DEFT, result)
        scene.check_injected(cases.CASES["strangers"], scene.SOCKET, result)
        nothing["ba"]["in_black_hole"] = 1
        scene.check_injected(cases.CASES["silent"], scene.DEFT, result)
        with self.assertRaisesRegex(scene.RunFailed, "before the fault was over"):
            scene.check_injected(cases.CASES["silent"], scene.DEFT, {**result, "outlasted": False})


class Report(unittest.TestCase):
    def test_a_record_has_a_run_a_line_and_becomes_a_table(self):
        runs = [run_of(ended=True), run_of(transport="socket", errors=[NOBODY_SPEAKS]),
                {"case": "silent", "where": "ratios", "transport": "deft", "seed": 1, "ratio": 0.9}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record.json")
            report.write(path, {"format": "deft-faults", "version": 1}, runs)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(json.loads(text)["runs"], runs)
            self.assertEqual(sum('"case"' in line for line in text.splitlines()), len(runs))
            out = io.StringIO()
            self.assertEqual(report.markdown(path, out), 0)
        self.assertIn("| silent | both | 1 done | 1 / 2 / 3 | 1 hung | - |  |", out.getvalue())
        self.assertIn("| silent | the healthy link alone | 0.900 (0.900 .. 0.900, "
                      "n=1) | below 0.97 |", out.getvalue())
        self.assertIn("deft: 1 runs, 1 of them to end well: 0 killed, 0 hung; 0 bytes wrong",
                      out.getvalue())


if __name__ == "__main__":
    unittest.main()
