# SPDX-License-Identifier: Apache-2.0
"""What a run came to, and whether that is good enough."""

import re

from . import scene

DONE, KILLED, HUNG, CRASHED = "done", "killed", "hung", "crashed"
DIED = re.compile(r"died of signal (?!9 )")   # 9: the case itself killed it
# netperf's own words where the transport said nothing
STILL = ("nothing moved", "not set up in time")
SLOWEST = 20      # of a run's message times, kept beside a thinned set
KEPT = 80


def outcome(result):
    if result["code"] == 0 and result["steady"]:
        return DONE
    if any(DIED.search(line) for line in result["last_words"]):
        return CRASHED
    said = [error for error in result["errors"]
            if not any(words in error["text"] for words in STILL)]
    return KILLED if said and not result["timed_out"] else HUNG


def wrong_bytes(result):
    parts = [error["progress"] or {} for error in result["errors"]] + [result["steady"] or {}]
    return sum(part.get("wrong_bytes", 0) for part in parts)


def digest(result):
    """The run as it is kept: one line of JSON."""
    steady = result.pop("steady")
    result["steady"] = bool(steady)
    result["outcome"] = DONE if result["code"] == 0 and steady else outcome(result)
    result["wrong_bytes"] = sum((error["progress"] or {}).get("wrong_bytes", 0)
                                for error in result["errors"])
    if steady:
        took = steady["message_ms"]
        samples = took["samples"]
        longest = sorted(samples)[-SLOWEST:]
        result["wrong_bytes"] += steady["wrong_bytes"]
        result["message_ms"] = {name: round(took[name], 2) for name in ("n", "p50", "p99", "max")}
        result["message_ms"]["samples"] = [round(value, 1)
                                           for value in samples[::max(1, len(samples) // KEPT)]]
        result["message_ms"]["longest"] = [round(value, 1) for value in longest]
        result["transfer_s"] = round(steady["seconds"], 3)
        result["longest_gap_s"] = round(steady["longest_gap_ms"] / 1e3, 3)
    return result


def late(case, result):
    """Why an error did not come as the documentation says; '' if it did."""
    for side in case.alive:
        error = next((error for error in result["errors"] if error["side"] == side), None)
        who = ("the sender", "the receiver")[side]
        if error is None or any(words in error["text"] for words in STILL):
            return f"{who} never heard of it"
        if error["after_s"] > case.bound:
            return f"{who} heard of it after {error['after_s']:.2f} s (bound {case.bound:g} s)"
    return ""


def complaints(case, ours, others):
    """What is wrong with deft's runs of a case in one place, given Socket's: a list of
    sentences."""
    found = []
    wrong = sum(result["wrong_bytes"] for result in ours)
    if wrong and case.checked:
        found.append(f"{wrong} bytes wrong")
    survives = bool(others) and all(result["outcome"] == DONE for result in others)
    for result in ours:
        if result["outcome"] == CRASHED:
            found.append("crashed")
        elif case.bound is not None:
            if result["outcome"] == DONE:
                found.append("the job ended well: the fault was none")
            elif late(case, result):
                found.append(late(case, result))
        elif result["outcome"] == HUNG:
            found.append("hung" + (" where Socket survives" if survives else ""))
        elif result["outcome"] == KILLED and case.checked and (survives or not others):
            found.append("killed where Socket survives" if survives else "killed")
    return found


def ends(case, results):
    """How the runs ended, in a few words: "done", "2 of 3 done, 1 killed", "error in 0.03 s"."""
    if case.bound is not None and not any(result["outcome"] == CRASHED for result in results):
        delays = [error["after_s"] for result in results for error in result["errors"]
                  if error["side"] in case.alive
                  and not any(words in error["text"] for words in STILL)]
        missing = sum(bool(late(case, result)) and "never" in late(case, result)
                      for result in results)
        said = [f"error in {max(delays):.2f} s"] if delays else []
        return ", ".join(said + ([f"{missing} hung"] if missing else []))
    counts = {kind: sum(result["outcome"] == kind for result in results)
              for kind in (DONE, KILLED, HUNG, CRASHED)}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def stalls(results):
    """(p50, p99, max) of the message times in ms: medians of the runs' quantiles, the longest of
    all; None without a run that ended."""
    ended = [result["message_ms"] for result in results if result.get("message_ms")]
    if not ended:
        return None
    middle = len(ended) // 2
    return (sorted(one["p50"] for one in ended)[middle],
            sorted(one["p99"] for one in ended)[middle], max(one["max"] for one in ended))


def count(results, cases):
    """{"runs", "ended": those that were to end well, "killed" and "hung" of these, "wrong"
    bytes}."""
    to_end_well = [result for result in results if cases[result["case"]].bound is None]
    checked = [result for result in results if cases[result["case"]].checked]
    return {"runs": len(results), "ended": len(to_end_well),
            "killed": sum(result["outcome"] in (KILLED, CRASHED) for result in to_end_well),
            "hung": sum(result["outcome"] == HUNG for result in to_end_well),
            "wrong": sum(result["wrong_bytes"] for result in checked)}


TRANSPORTS = (scene.DEFT, scene.SOCKET)
