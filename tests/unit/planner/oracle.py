#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the packing solvers with a mixed-integer solver: HiGHS (pip install highspy, or
SciPy's copy of it), else CBC (Debian: coinor-cbc). Exit 77 if neither is there. Usage: oracle.py
packing-instances"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import highspy
except ImportError:
    highspy = None


def model(problem):
    """The generalised assignment problem in CPLEX LP format, which both solvers read."""
    links, value = problem["links"], problem["value"]
    variables = [(i, j) for i in range(len(value)) for j in range(links)]
    cost = problem["cost"]
    lines = ["Maximize", " o: " + "\n + ".join(f"{value[i]!r} x{i}_{j}" for i, j in variables),
             "Subject To"]
    for j in range(links):
        row = "\n + ".join(f"{cost[i * links + j]!r} x{i}_{j}" for i in range(len(value)))
        lines.append(f" c{j}: {row} <= {problem['capacity'][j]!r}")
    for i in range(len(value)):
        lines.append(f" a{i}: " + " + ".join(f"x{i}_{j}" for j in range(links)) + " <= 1")
    lines += ["Binary"] + [f" x{i}_{j}" for i, j in variables] + ["End", ""]
    return "\n".join(lines)


def solve_highs(path, seconds):
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", float(seconds))
    solver.setOptionValue("mip_rel_gap", 1e-6)
    solver.readModel(path)
    solver.run()
    info = solver.getInfo()
    return info.objective_function_value, max(info.mip_dual_bound, info.objective_function_value)


def solve_cbc(path, seconds):
    out = subprocess.run(["cbc", path, "sec", str(seconds), "ratio", "1e-6", "solve", "quit"],
                         capture_output=True, text=True, timeout=seconds * 4 + 60,
                         check=True).stdout
    value = bound = None
    for line in out.splitlines():
        if line.startswith("Objective value:"):
            value = abs(float(line.split(":")[1]))
        if line.startswith("Lower bound:") or line.startswith("Upper bound:"):
            bound = abs(float(line.split(":")[1]))
    if value is None:  # nothing found in time
        value, bound = 0.0, bound or float("inf")
    return value, max(value, bound or value)


def main():
    if highspy is None and shutil.which("cbc") is None:
        print("skipped: neither highspy nor cbc is installed")
        return 77
    solve = solve_highs if highspy is not None else solve_cbc
    instances = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout
    failures = proven = 0
    for line in instances.splitlines():
        problem = json.loads(line)
        size = f"{len(problem['value'])} x {problem['links']}"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "p.lp")
            with open(path, "w", encoding="ascii") as file:
                file.write(model(problem))
            # Small ones are proven; of the large a bound is enough.
            value, bound = solve(path, 20 if len(problem["value"]) <= 20 else 1)
        slack = 2e-6 * bound
        print(f"{size:8} oracle {value:.6f}..{bound:.6f} exact {problem['exact']:.6f}"
              f"{'' if problem['optimal'] else ' (gave up)'} greedy {problem['greedy']:.6f} bound "
              f"{problem['bound']:.6f}")
        # What the exact search calls optimal is: nobody finds more, and it is not above the proof.
        if problem["optimal"]:
            proven += 1
            if problem["exact"] < value - slack or problem["exact"] > bound + slack:
                print("  FAILED: the exact search is not optimal")
                failures += 1
        if problem["greedy"] > bound + slack or problem["bound"] < value - slack:
            print("  FAILED: greedy above the optimum, or its bound below it")
            failures += 1
        if len(problem["value"]) >= 38 and problem["greedy"] < 0.985 * value:
            print("  FAILED: greedy is more than 1.5 % from the optimum")
            failures += 1
    print(f"{proven} proven optimal, {failures} failures")
    return 1 if failures or proven < 12 else 0


if __name__ == "__main__":
    sys.exit(main())
