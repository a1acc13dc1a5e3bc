# SPDX-License-Identifier: Apache-2.0
"""What the delivery policies do to accuracy: the same training, plain and through deft, over optimizers and seeds.

    python3 perf/accuracy/run.py --build build [--models tiny-mlp] [--optimizers momentum,adam] [--policies plain,delay1]
                                 [--seeds 5] [--out perf/results/accuracy]

Two ranks on the software device train a small model on scikit-learn's digits (perf/jobs/ddp.py, an unmodified PyTorch DDP job).
Each run is a line of OUT.jsonl; runs that are there already are not repeated, so a stopped matrix goes on where it was.
OUT.md has the table (test accuracy, mean and standard deviation over seeds; a cell is marked where it lies more than two
standard errors below plain), OUT.svg the loss curves of the first seed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "perf", "common"))
import machine  # noqa: E402

WARM_UP = 44    # iterations: two epochs
# The learning rate that is best, or near it, for the plain job.
RATES = {"tiny-mlp": {"sgd": 0.5, "momentum": 0.05, "nesterov": 0.05, "adam": 0.002, "adamw": 0.002},
         "tiny-transformer": {"sgd": 0.2, "momentum": 0.02, "nesterov": 0.02, "adam": 0.002, "adamw": 0.002}}
OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd:momentum=0.9", "nesterov": "sgd:momentum=0.9", "adam": "adam", "adamw": "adamw"}
# name: DEFT_* settings; None: without deft
POLICIES = {
    "plain": None,
    "exact": {"DEFT_MODE": "exact"},
    "delay1": {"DEFT_MODE": "deft", "DEFT_PLAN": "delay1", "DEFT_PREDICT": "none"},
    "delay1+predict": {"DEFT_MODE": "deft", "DEFT_PLAN": "delay1", "DEFT_PREDICT": "auto"},
    "merge2": {"DEFT_MODE": "deft", "DEFT_PLAN": "merge2", "DEFT_PREDICT": "none"},
    "merge2late": {"DEFT_MODE": "deft", "DEFT_PLAN": "merge2-delay1", "DEFT_PREDICT": "none"},
    "merge2late+predict": {"DEFT_MODE": "deft", "DEFT_PLAN": "merge2-delay1", "DEFT_PREDICT": "auto"},
}


def parse():
    parser = argparse.ArgumentParser(description="Accuracy of delivery policies over models, optimizers and seeds.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--models", default=",".join(RATES))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--guard", default="strict", choices=["strict", "warn", "off"])
    parser.add_argument("--out", default=os.path.join(ROOT, "perf", "results", "accuracy"), help="path without extension")
    parser.add_argument("--report", action="store_true", help="run nothing: write the table and the curves of what is there")
    parser.add_argument("--timeout", type=float, default=300, help="seconds one run may take")
    options = parser.parse_args()
    for name, known in (("models", RATES), ("optimizers", OPTIMIZERS), ("policies", POLICIES)):
        chosen = [item.strip() for item in getattr(options, name).split(",")]
        for item in chosen:
            if item not in known:
                parser.error(f"--{name}: {item!r} is none of {', '.join(known)}")
        setattr(options, name, chosen)
    options.build = os.path.abspath(options.build)
    options.out = os.path.abspath(options.out)
    return options


def run(options, model, optimizer, policy, seed):
    """One training; the line for OUT.jsonl."""
    with tempfile.TemporaryDirectory(prefix="deft-accuracy-") as folder:
        result = os.path.join(folder, "result.json")
        job = [os.path.join(options.build, "tests", "softdev", "torch", "softdev-torch"), "--ranks", "2",
               os.path.join(ROOT, "perf", "jobs", "ddp.py"), "--model", model, "--optimizer", optimizer,
               "--lr", str(RATES[model][optimizer]), "--seed", str(seed), "--epochs", str(options.epochs),
               "--bucket-cap-mb", "0.016", "--print-every", "1000", "--json", result]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEFT_", "NCCL_"))}
        environment.update({"NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        settings = POLICIES[policy]
        if settings is not None:
            environment.update({**settings, "DEFT_OPTIMIZER": OPTIMIZERS[optimizer], "DEFT_WARMUP": str(WARM_UP),
                                "DEFT_GUARD": options.guard, "DEFT_INTERFACES": "lo",
                                "DEFT_OUT": os.path.join(folder, "observe-%r.json")})
            job = [os.path.join(options.build, "tools", "deft"), "run", "--mode", settings["DEFT_MODE"], "--library",
                   os.path.join(options.build, "packaging", "libnccl-net-deft.so"), "--", *job]
        else:
            environment["NCCL_NET_PLUGIN"] = "none"
        done = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=options.timeout, check=False,
                              cwd=folder)
        line = {"model": model, "optimizer": optimizer, "lr": RATES[model][optimizer], "policy": policy, "seed": seed,
                "epochs": options.epochs, "guard": options.guard}
        if done.returncode != 0 or not os.path.exists(result):
            return {**line, "failed": (done.stderr or done.stdout)[-400:]}
        with open(result, encoding="utf-8") as file:
            results = json.load(file)
        line.update({"accuracy": results["test_accuracy"], "epoch_losses": results["epoch_losses"],
                     "replicas_equal": results["replicas_equal"], "median_ms": results["iteration_ms"]["median"]})
        observed = os.path.join(folder, "observe-0.json")
        if settings is not None and os.path.exists(observed):
            with open(observed, encoding="utf-8") as file:
                plans = json.load(file).get("plans", [])
            if plans:
                line.update({name: plans[0][name] for name in ("state", "switched", "iterations", "guard_decisions")})
        return line


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        return []


def cell(runs, plain):
    """One cell of the table."""
    if not runs:
        return "-"
    values = [100 * one["accuracy"] for one in runs if "accuracy" in one]
    if len(values) < len(runs):
        return f"{len(runs) - len(values)} failed"
    mean = statistics.mean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    mark = ""
    base = [100 * one["accuracy"] for one in plain if "accuracy" in one]
    if base and runs is not plain and len(values) > 1 and len(base) > 1:
        error = math.sqrt(spread ** 2 / len(values) + statistics.variance(base) / len(base))
        mark = " below" if statistics.mean(base) - mean > 2 * error else ""
    fallen = sum(1 for one in runs if one.get("guard_decisions"))
    not_in_force = sum(1 for one in runs if one["policy"] not in ("plain", "exact") and not one.get("switched"))
    notes = ([f"guard acted in {fallen}"] if fallen else []) + ([f"no plan in {not_in_force}"] if not_in_force else [])
    if not all(one["replicas_equal"] for one in runs):
        notes.append("REPLICAS DIFFER")
    loss = statistics.mean(one["epoch_losses"][-1] for one in runs)
    return f"{mean:.1f} ± {spread:.1f} ({loss:.3f}){mark}" + (f" [{'; '.join(notes)}]" if notes else "")


def write_table(options, lines):
    """Markdown: one table per model, a row per policy, a column per optimizer."""
    text = ["# Accuracy of delivery policies", "",
            f"`python3 perf/accuracy/run.py`: digits, 2 ranks x batch 32, {options.epochs} epochs of 22 iterations, the first "
            f"{WARM_UP} iterations synchronous. Test accuracy in %, mean ± standard deviation over seeds (training loss of the "
            "last epoch); `below`: more than two standard errors under plain. Raw data beside this file.", ""]
    for model in options.models:
        text += [f"## {model}", "", "| policy | " + " | ".join(f"{name}, lr {RATES[model][name]}" for name in options.optimizers)
                 + " | runs |", "|---|" + "---|" * (len(options.optimizers) + 1)]
        for policy in options.policies:
            cells, count = [], 0
            for optimizer in options.optimizers:
                def chosen(which):
                    return [one for one in lines if (one["model"], one["optimizer"], one["policy"]) == (model, optimizer, which)]
                mine = chosen(policy)
                count += len(mine)
                cells.append(cell(mine, chosen("plain") if policy != "plain" else mine))
            text.append(f"| {policy} | " + " | ".join(cells) + f" | {count} |")
        text.append("")
    with open(options.out + ".md", "w", encoding="utf-8") as file:
        file.write("\n".join(text))


def write_curves(options, lines):
    """SVG: training loss by epoch, first seed, a panel per model and optimizer."""
    panels = [(model, optimizer) for model in options.models for optimizer in options.optimizers]
    width, height, columns = 300, 200, len(options.optimizers)
    colours = ["#222222", "#4477aa", "#cc3311", "#228833", "#aa3377", "#ee7733", "#66ccee"]
    rows = math.ceil(len(panels) / columns)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * columns} {height * rows + 24}" font-size="11">']
    for index, (model, optimizer) in enumerate(panels):
        left, top = width * (index % columns), height * (index // columns)
        parts.append(f'<text x="{left + 30}" y="{top + 14}">{model}, {optimizer}</text>')
        for number, policy in enumerate(options.policies):
            for one in lines:
                if (one["model"], one["optimizer"], one["policy"], one["seed"]) == (model, optimizer, policy, 1) \
                        and "epoch_losses" in one:
                    points = " ".join(f"{left + 30 + (width - 50) * step / max(1, len(one['epoch_losses']) - 1):.1f},"
                                      f"{top + 20 + (height - 50) * (1 - min(loss, 2.4) / 2.4):.1f}"
                                      for step, loss in enumerate(one["epoch_losses"]))
                    parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[number % 7]}"/>')
    for number, policy in enumerate(options.policies):
        parts.append(f'<text x="{30 + 130 * number}" y="{height * rows + 16}" fill="{colours[number % 7]}">{policy}</text>')
    with open(options.out + ".svg", "w", encoding="utf-8") as file:
        file.write("\n".join(parts + ["</svg>\n"]))


def main():
    options = parse()
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    path = options.out + ".jsonl"
    lines = read(path)
    known = {(one["model"], one["optimizer"], one["policy"], one["seed"]) for one in lines}
    wanted = [(model, optimizer, policy, seed) for seed in range(1, options.seeds + 1) for model in options.models
              for optimizer in options.optimizers for policy in options.policies]
    failed = 0
    with open(path, "a", encoding="utf-8") as file:
        for number, one in enumerate(wanted):
            if one in known or options.report:
                continue
            line = run(options, *one)
            failed += "failed" in line
            line["machine"] = machine.describe()
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{number + 1}/{len(wanted)} {' '.join(map(str, one))}: "
                  + (f"{100 * line['accuracy']:.1f} %" if "accuracy" in line else f"failed: {line['failed'][-200:]}"), flush=True)
    write_table(options, lines)
    write_curves(options, lines)
    print(f"{options.out}.md, .svg and .jsonl written")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
