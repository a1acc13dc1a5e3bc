# SPDX-License-Identifier: Apache-2.0
"""What the demo prints and keeps: the two runs side by side, and what deft observed."""

import glob
import json
import os
import platform

from ..common import bounds, hosts, iterations

# What the runs with deft are called. `layers`: layers wait for their own gradients.
NAMES = {"plain": "without deft", "observe": "mode observe", "exact": "mode exact",
         "layers": "exact, layer-wise", "deft": "mode deft", "covap": "mode covap"}
LOSS_TOLERANCE = 1e-6
LAST_ITERATIONS = 4   # that are shown as they went
# No harder claim can be made: while ranks compute on the cores that carry the bytes, compute alone
# would be shorter.
BOUND = ("lower bound: of a job whose compute takes as long as it did beside the transfers of the "
         "first run in mode observe or exact, with all links at their full rates. "
         "The cores that compute here also carry the bytes: a run that sends less, or later, "
         "may compute faster and come below it")


def agreement(plain, deft):
    """How far the losses of two runs agree: "bitwise", "within 1e-06" or "no"."""
    left, right = plain["epoch_losses"], deft["epoch_losses"]
    if left == right and plain["checksum"] == deft["checksum"]:
        return "bitwise"
    if len(left) == len(right) and all(abs(a - b) <= LOSS_TOLERANCE * max(1.0, abs(a))
                                       for a, b in zip(left, right)):
        return f"within {LOSS_TOLERANCE:g}"
    return "no"


def read_observed(folder, name, world):
    """The observe files of all ranks in rank order, and what is wrong with them (a list of
    lines)."""
    files, complaints = {}, []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"{name}-observe-*.json"))):
        try:
            with open(path, encoding="utf-8") as file:
                records = [json.loads(line) for line in file]
            for content in records:
                if content.get("format") != "deft-observe":
                    raise ValueError(f"format is {content.get('format')!r}, not 'deft-observe'")
                files[int(content["rank"])] = content
        except (OSError, ValueError, KeyError) as error:
            complaints.append(f"{path}: {error}")
    missing = [rank for rank in range(world) if rank not in files]
    if missing:
        complaints.append(f"no observe file from rank {', '.join(map(str, missing))}: "
                          "was deft preloaded there?")
    return [files[rank] for rank in sorted(files)], complaints


def verdict(observed, world):
    """Were hooks and plugin in the path on every rank? Returns (hooks, plugin, one line)."""
    reduced = [file.get("calls", {}).get("ncclAllReduce", 0) for file in observed]
    plugin = [file.get("plugin", {}) for file in observed]
    hooks_ok = len(reduced) == world and all(reduced)
    plugin_ok = len(plugin) == world and all(one.get("loaded") and one.get("calls", 0) > 0
                                             for one in plugin)
    line = (f"hooks in the path on {sum(1 for calls in reduced if calls)} of {world} ranks "
            f"({sum(reduced)} all-reduce calls seen), plugin on "
            f"{sum(1 for one in plugin if one.get('loaded') and one.get('calls', 0) > 0)} of "
            f"{world} (net ABI v{plugin[0].get('abi', '?') if plugin else '?'}, "
            f"{sum(one.get('calls', 0) for one in plugin)} calls)")
    return hooks_ok, plugin_ok, line


def megabytes(count):
    return f"{count / 1e6:.1f}"


def table(rows):
    """Lines of a table with right-aligned columns, the first left-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                             for column, (cell, width) in enumerate(zip(row, widths))).rstrip()
            for row in rows]


def settled_ms(phase):
    """Typical time of an iteration in the second half of a run: a plan comes into force in the
    first."""
    raw = phase["job"]["iteration_ms"]["raw"]
    return iterations.typical(raw[len(raw) // 2:], iterations.period_of(plan_of(phase)))


def iterations_to(phase, loss):
    """How many iterations a run took to this mean loss of an epoch, between two epochs in
    proportion; the run got there."""
    losses = phase["job"]["epoch_losses"]
    share = phase["job"]["iterations"] / len(losses)
    last = next((epoch for epoch, value in enumerate(losses) if value <= loss), len(losses) - 1)
    if last == 0:
        return share
    before, after = losses[last - 1], losses[last]
    return share * (last + (before - loss) / (before - after))


def last_activity(results, activity, count=LAST_ITERATIONS):
    """The last iterations of a run as they went, for result.json: {iterations: [[began, last
    gradient computed, backward over, ended]...], links: {device: [[seconds, bytes sent by
    then]...]}}, times in seconds since the first of them began; None where nothing was sampled."""
    parts = results.pop("iteration_s", [])[-count:]
    if not parts or not activity:
        return None
    begin, end = parts[0][0], parts[-1][-1]
    samples = activity["samples"]
    first = max((index for index, sample in enumerate(samples) if sample[0] <= begin), default=0)
    last = next((index for index, sample in enumerate(samples) if sample[0] >= end),
                len(samples) - 1)
    within = samples[first:last + 1]
    return {"iterations": [[round(at - begin, 5) for at in part] for part in parts],
            "links": {device: [[round(sample[0] - begin, 5),
                                sample[1 + index] - within[0][1 + index]] for sample in within]
                      for index, device in enumerate(activity["devices"])}}


def plan_of(phase):
    """What deft says about the plan of a phase, from rank 0; {} if there was none."""
    plans = phase["observed"][0].get("plans", []) if phase.get("observed") else []
    return plans[0] if plans else {}


def plan_words(phase):
    """Is a plan in force, and if not, why not: one line."""
    facts, total = plan_of(phase), phase["job"]["iterations"]
    if not facts:
        return "no plan: deft met no communicator to plan for"
    under = (f"{facts['iterations']} of {total} iterations under it, "
             f"{facts['updates_per_iteration']:g} updates per iteration")
    if facts["state"] == "running":
        return f"plan '{facts['policy']}' in force at the end: {under}"
    why = f" ({facts['reason']})" if facts.get("reason") else ""
    if facts.get("switched"):
        return (f"plan '{facts['policy']}' was in force and is not any more, "
                f"state {facts['state']}{why}: {under}")
    if facts.get("reason"):
        return f"no plan in force: {facts['reason']}"
    if facts.get("policy"):
        return (f"no plan in force, state {facts['state']}: "
                f"the best one predicts {facts['predicted_ms']:.0f} ms per iteration, "
                f"the job as it is takes {facts['baseline_ms']:.0f} ms" +
                ("" if facts["predicted_ms"] < 0.98 * facts["baseline_ms"] else
         ": nothing to gain beyond striping"))
    return f"no plan in force, state {facts['state']}: the job was too short to learn its iteration"


def measured_shape(phases):
    """(compute, ready, bytes) of an iteration in seconds and bytes, from the first run that has
    them; None without."""
    for phase in phases.values():
        for file in phase.get("observed", [])[:1]:
            buckets, compute = file.get("buckets",
                                        []), (file.get("iterations") or {}).get("compute_ms") or {}
            ready = [(bucket.get("ready_ms") or {}).get("median") for bucket in buckets]
            # Under a plan that delays, calls return at once: what they show is no transfer any
            # more.
            if (buckets and compute.get("median") and None not in ready
                and phase.get("mode") in ("observe", "exact")):
                sizes = [bucket["bytes"] for bucket in buckets]
                return compute["median"] / 1e3, [value / 1e3 for value in ready], sizes
    return None


def lower_bounds(phases, rates, ranks):
    """{run: ms}, what BOUND says; {} where no compute was measured, or a link has no rate."""
    shape, bits = measured_shape(phases), [hosts.rate_bits(rate) for rate in rates]
    if shape is None or None in bits:
        return {}
    compute, ready, sizes = shape
    found = {}
    for name in phases:
        gbit = (max(bits) if name == "plain" else sum(bits)) / 1e9
        found[name] = 1e3 * bounds.of_mode(name, compute, ready, bounds.costs(sizes, gbit, ranks))
    return found


def _planned(phase, words):
    facts = plan_of(phase)
    return words(facts) if facts.get("policy") else "-"


def comparison(phases, shaped, limits):
    """Rows that set the runs side by side, the first one their names. Each is a phase of
    result.json. `limits`: see lower_bounds. Without namespaces the kernel's counters are those
    of the whole machine's loopback interface, and are left out."""
    runs = list(phases.values())
    rows = [["", *(NAMES[name] for name in phases)]]
    rows.append(["loss (last epoch)", *(f"{run['job']['loss']:.6f}" for run in runs)])
    rows.append(["test accuracy, %", *(f"{100 * run['job']['test_accuracy']:.1f}" for run in runs)])
    for key, name in (("median", "iteration, median ms"), ("p10", "          10 % ms"),
                      ("p90", "          90 % ms")):
        rows.append([name, *(f"{run['job']['iteration_ms'][key]:.0f}" for run in runs)])
    rows.append(["second half, median ms", *(f"{settled_ms(run):.0f}" for run in runs)])
    rows.append(["speed-up",
                 *(f"{settled_ms(runs[0]) / settled_ms(run):.2f}" if settled_ms(run) else "-"
                   for run in runs)])
    goal = max(run["job"]["loss"] for run in runs)
    rows.append([f"time to loss {goal:.3f}, s",
                 *(f"{1e-3 * settled_ms(run) * iterations_to(run, goal):.1f}" for run in runs)])
    rows.append(["plan", *(_planned(run, lambda facts: facts["state"]) for run in runs)])
    rows.append(["predicted, ms",
                 *(_planned(run, lambda facts: f"{facts['predicted_ms']:.0f}") for run in runs)])
    rows.append(["lower bound, ms",
                 *(f"{limits[name]:.0f}" if name in limits else "-" for name in phases)])
    rows.append(["updates per iteration",
                 *(_planned(run, lambda facts: f"{facts['updates_per_iteration']:g}")
                   if plan_of(run).get("switched") else "1"
                   for run in runs)])
    for device in (list(runs[0]["traffic"][0]) if shaped else []):
        rows.append([f"sent by host 0 on {device}, MB",
                     *(megabytes(run["traffic"][0][device]["sent"]) for run in runs)])
    return rows


def _time(quantiles):
    return (f"{quantiles['median']:.1f}" if quantiles and quantiles.get("median") is not None
            else "-")


def verdict_sentence(phases, good, same, shaped):
    """What came out, in one sentence for the top of the page."""
    before, parts = settled_ms(phases["plain"]), []
    for name, phase in phases.items():
        if name == "plain":
            continue
        what = f"{NAMES[name]} ran"
        if shaped and before:
            what = f"{NAMES[name]} took {settled_ms(phase) / before:.2f} of the time without deft"
        how = same.get(name)
        losses = {"bitwise": "equal losses", "no": "other losses"}.get(how, f"losses {how}")
        parts.append(f"{what}, with {losses}")
    # Of the runs, not of their times: a run may well end and be slower.
    all_well = ("Every run ended as it should" if good else
                "NOT every run ended as it should, see what was printed")
    return f"{all_well}: {'; '.join(parts)}."


def circumstances(options, network, described, when):
    """Where, when and with what the runs were made: sentences for the page."""
    cpu = described["cpu"] or "unknown CPU"
    ranks = f"{options.ranks_per_host} rank{'' if options.ranks_per_host == 1 else 's'} each"
    return [f"{when} on {platform.node()}: {described['cpus']} x {cpu}, Linux "
            f"{described['kernel']}, load {described['load_before']} before; {network.describe()}.",
            f"{options.hosts} hosts with {ranks}, links {', '.join(options.rates)}; model "
            f"{options.model}, {options.epochs} epochs, batch {options.batch}, optimizer "
            f"{options.optimizer}, buckets of {options.bucket_cap_mb:g} MB, seed {options.seed}. "
            "result.json has all figures."]


def buckets(file):
    """The lines about the iteration deft has learned, from one rank's observe file."""
    seen = file.get("iterations", {})
    learned = file.get("buckets", [])
    if not learned:
        return [f"  no iteration learned (of {seen.get('seen', 0)} seen)"]
    rows = [["bucket", "bytes", "type", "ready, ms", "transfer, ms"]]
    for bucket in learned:
        rows.append([str(bucket.get("position", "?")), f"{bucket.get('bytes', 0):,}",
                     str(bucket.get("type", "?")), _time(bucket.get("ready_ms")),
                     _time(bucket.get("transfer_ms"))])
    rate = seen.get("coverage_rate") or {}
    line = f"  {seen.get('seen', 0)} iterations seen, {len(learned)} buckets in each"
    if rate.get("median") is not None:
        line += f", coverage rate {rate['median']:.2f} (time to transfer / time to compute)"
    return [line, *table(rows)]


def links(observed):
    """The lines about links, as deft counted them on every rank."""
    rows = [["rank", "link", "kind", "sent, MB", "received, MB", "chunks", "busy, ms"]]
    for file in observed:
        for link in file.get("links", []):
            rows.append([str(file.get("rank", "?")), str(link.get("name", "?")),
                         str(link.get("kind", "?")), megabytes(link.get("bytes_sent", 0)),
                         megabytes(link.get("bytes_received", 0)),
                         str(link.get("chunks_sent", "-")), f"{link.get('busy_ms', 0):.0f}"])
    return table(rows) if len(rows) > 1 else ["  none: no message went through deft's links"]
