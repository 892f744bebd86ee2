"""Compares this program's own search with every published strategy, on all graphs in a folder.

Usage: never_worse.py --binary target/release/ckpt-opt --models DIR [--only NAME ...] [--strategies NAME,...]
                      [--settings default lean] [--budgets SIZE ...] [--time-limit SECONDS]

Graphs are bound as tools/truth_models.json says, those that it does not name with batch=2. For every graph and setting:
`compare` at seven budgets from fixed+90% to fixed+20%. A published strategy beats auto where it has a plan within a budget
that adds less, or where its smallest peak is smaller; what the printed percentages round away does not count.
Exit status 1 if any does. The exact lower-set strategies and the 0-1 programs are left out unless --strategies
names them: the former's families contain the approximate ones', the latter take minutes for each graph.
"""

import argparse
import json
import os
import subprocess
import sys
import time

STRATEGIES = (
    "auto,chen-sqrt,chen-budget,chen-recursive,cheap-ops,lower-set-approx,lower-set-approx-memory,greedy-remat,"
    "knapsack,precise-dp,uniform-dp,revolve,join-dp"
)
BUDGETS = ["fixed+90%", "fixed+80%", "fixed+65%", "fixed+50%", "fixed+40%", "fixed+30%", "fixed+20%"]
# A ten-thousandth of the step, and of the peak.
SLACK = 1e-4


def beaten(result):
    """Where a published strategy does better than auto, in words."""
    rows = {strategy["strategy"]: strategy for strategy in result["strategies"]}
    auto = rows.pop("auto")
    found = []
    for name, other in rows.items():
        if other["refused"]:
            continue
        if other["smallest_peak_bytes"] < auto["smallest_peak_bytes"] * (1 - SLACK):
            found.append(f"{name} reaches {other['smallest_peak_bytes']} bytes, auto {auto['smallest_peak_bytes']}")
        for budget, own, its in zip(result["budgets"], auto["rows"], other["rows"]):
            if its["fits"] and not own["fits"]:
                found.append(f"{name} has a plan at {budget}, auto has none")
            elif its["fits"] and its["overhead"] < own["overhead"] - SLACK:
                found.append(f"{name} adds {its['overhead']:.4%} at {budget}, auto {own['overhead']:.4%}")
    return found


def summary(result):
    auto = next(strategy for strategy in result["strategies"] if strategy["strategy"] == "auto")
    cells = [f"{row['overhead']:7.2%}" if row["fits"] else "      -" for row in auto["rows"]]
    return f"{auto['smallest_peak_bytes'] / 1e6:10.1f} MB " + " ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--settings", nargs="*", default=["default", "lean"])
    parser.add_argument("--budgets", nargs="*", default=BUDGETS)
    parser.add_argument("--time-limit", help="for each strategy; what ends early may be beaten")
    arguments = parser.parse_args()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "truth_models.json")) as file:
        known = json.load(file)
    failures = 0
    print(f"{'graph':<22}{'settings':<9}{'smallest':>13} " + " ".join(f"{budget.replace('fixed', ''):>7}" for budget in arguments.budgets))
    for name in sorted(os.listdir(arguments.models)):
        name, extension = os.path.splitext(name)
        if extension != ".onnx" or (arguments.only and name not in arguments.only):
            continue
        dims = known.get(name, {}).get("dims", {"batch": 2})
        for settings in arguments.settings:
            command = [arguments.binary, "compare", os.path.join(arguments.models, name + ".onnx"), "--json", "--quiet"]
            command += ["--order", "any", "--level", "any"]
            command += ["--strategies", arguments.strategies, "--runtime-settings", settings]
            command += [word for dim, size in dims.items() for word in ("--dim", f"{dim}={size}")]
            command += [word for budget in arguments.budgets for word in ("--budget", budget)]
            if arguments.time_limit:
                command += ["--time-limit", arguments.time_limit]
            started = time.time()
            done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True)
            if done.returncode != 0:
                print(f"{name:<22}{settings:<9}ckpt-opt ended with status {done.returncode}")
                failures += 1
                continue
            result = json.loads(done.stdout)
            print(f"{name:<22}{settings:<9}{summary(result)}   in {time.time() - started:.0f} s", flush=True)
            for line in beaten(result):
                print(f"    BEATEN: {line}", flush=True)
                failures += 1
    print("auto is nowhere beaten" if not failures else f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
