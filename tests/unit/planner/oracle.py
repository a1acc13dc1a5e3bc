#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the packing solver with another one: HiGHS (pip install highspy), else CBC (Debian:
coinor-cbc). Exit 77 if neither is there. The other one proves the optimum of small problems; of
large ones it solves the relaxation that may send a part of an item. Usage: oracle.py
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


def model(problem, whole):
    """The generalised assignment problem in CPLEX LP format, which both solvers read. `whole`: an
    item goes entirely or not at all."""
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
    if whole:
        lines += ["Binary"] + [f" x{i}_{j}" for i, j in variables]
    lines += ["End", ""]
    return "\n".join(lines)


def solve_highs(path, whole):
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", 20.0)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    solver.readModel(path)
    solver.run()
    info = solver.getInfo()
    value = info.objective_function_value
    return value, max(info.mip_dual_bound, value) if whole else value


def solve_cbc(path, whole):
    # CBC counts time of the processor, so that a busy machine proves no less.
    limits = ["sec", "20", "ratio", "1e-6", "solve"] if whole else ["initialSolve"]
    out = subprocess.run(["cbc", path, *limits, "quit"], capture_output=True, text=True,
                         check=True).stdout
    value = bound = None
    for line in out.splitlines():
        if line.startswith(("Objective value:", "Optimal objective")):
            value = abs(float(line.replace(":", " ").split()[2]))
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
        whole = len(problem["value"]) < 30
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "p.lp")
            with open(path, "w", encoding="ascii") as file:
                file.write(model(problem, whole))
            value, bound = solve(path, whole)
        slack = 2e-6 * bound
        print(f"{size:8} oracle {value:.6f}..{bound:.6f} greedy {problem['greedy']:.6f} "
              f"bound {problem['bound']:.6f}")
        # Both of the solver's answers enclose what is proven: nobody finds more than the bound. The
        # bound is no tighter than the relaxation.
        if bound - value <= 2 * slack:
            proven += 1
        if problem["greedy"] > bound + slack or problem["bound"] < value - slack:
            print("  FAILED: greedy above the optimum, or its bound below it")
            failures += 1
        if not whole and problem["greedy"] < 0.985 * value:
            print("  FAILED: greedy is more than 1.5 % from the relaxation")
            failures += 1
    print(f"{proven} proven optimal, {failures} failures")
    return 1 if failures or proven < 24 else 0


if __name__ == "__main__":
    sys.exit(main())
