"""Plans training graphs at many budgets and prints how good the plans are and how long they took.

Usage: quality.py --binary target/release/ckpt-opt [--models DIR] [--only NAME ...] [--budgets SIZE ...]
                  [--sizes N ...] [--against BINARY] [--csv FILE] [--timeout SECONDS] [--sweep [N] [--together]]

The graphs are those of truth_models.json that DIR holds, then generated ones (generate.py) of each size
in --sizes, and uniform chains of 16, 32 and 64 (32, 64 and 128 nodes). --only takes names or patterns: `cnn_*`. A generated graph's
name is its family and the number of nodes it was made for; it is made once, in the folder `generated`
beside the binary's.

Nothing is written: plans are made with --dry-run for the runtime settings `lean`. Overhead, bound and copies
are those of recomputation and barriers together; `gap` is on total step time, (1 + overhead) / (1 + bound) - 1.
Peaks are in MB (10^6 bytes) beyond what the caller owns. --against plans with another binary too, and shows by
how many points of overhead this one is worse.

--sweep plans at N (50) budgets instead, in equal steps from the smallest peak found to that of the unmodified
graph. A larger budget must never give more overhead, every budget must be kept, and none may be infeasible. Each budget
is planned for itself; with --together all of them are by one run of `ckpt-opt sweep`.
Exit status 0 if that held everywhere.
"""

import argparse
import csv
import fnmatch
import json
import os
import subprocess
import sys
import time

import truth_table
from generate import FAMILIES, generate
from training_graph import save

TOOLS = os.path.dirname(os.path.abspath(__file__))
BUDGETS = [f"fixed+{part}%" for part in (90, 80, 65, 50, 40, 30, 20)] + ["min"]
CHAINS = [16, 32, 64]
INFEASIBLE = 3
COLUMNS = ["graph", "nodes", "budget", "overhead", "bound", "gap", "seconds", "evaluations", "copies", "barriers", "peak"]
# What the overheads of two budgets may differ by without a word: a hundredth of a point.
EQUAL = 1e-4


class Graph:
    def __init__(self, name, path, dims=()):
        self.name, self.path, self.dims = name, path, list(dims)


def real_graphs(folder):
    with open(os.path.join(TOOLS, "truth_models.json")) as file:
        entries = json.load(file)
    for name, entry in entries.items():
        path = os.path.join(folder, name + ".onnx")
        if os.path.exists(path):
            yield Graph(name, path, [f"{key}={value}" for key, value in entry["dims"].items()])


def generated_graphs(folder, sizes, wanted):
    chosen = [("chain", 2 * length) for length in CHAINS]
    chosen += [(family, size) for size in sizes for family in FAMILIES]
    for family, size in chosen:
        name = f"{family}_{size}"
        path = os.path.join(folder, name + ".onnx")
        if not wanted(name):
            continue
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            save(generate(family, size), path)
        yield Graph(name, path)


def plan(binary, graph, budget, timeout):
    """The status (None: no end within the time), the figures or the message, and the seconds it took."""
    return run([binary, graph.path, "--dry-run", "--budget", budget], graph, timeout)


def run(command, graph, timeout):
    # Every session, since no lower bound is known of what the runtime fuses.
    command += ["--runtime-settings", "lean", "--json", "--quiet", *truth_table.EVERY_SESSION]
    for dim in graph.dims:
        command += ["--dim", dim]
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"no plan in {timeout:g} s", timeout
    seconds = time.monotonic() - start
    if done.returncode:
        return done.returncode, truth_table.gist(done.stderr or f"exit status {done.returncode}"), seconds
    return 0, json.loads(done.stdout), seconds


def gap(figures):
    return (1 + figures["overhead"]) / (1 + figures["lower_bound_overhead"]) - 1


def percent(value):
    return f"{100 * value:.2f} %"


def row(graph, budget, outcome):
    """The texts of a row's columns."""
    status, figures, seconds = outcome
    texts = dict.fromkeys(COLUMNS, "–")
    texts.update(graph=graph.name, budget=budget, seconds=f"{seconds:.2f}")
    if status == INFEASIBLE:
        texts["overhead"] = "infeasible"
    elif status != 0:
        texts["overhead"] = figures
    else:
        texts.update(
            nodes=str(figures["nodes_before"]),
            overhead=percent(figures["overhead"]),
            bound=percent(figures["lower_bound_overhead"]),
            gap=percent(gap(figures)),
            evaluations=str(figures.get("evaluations", "–")),
            copies=str(figures["recomputed_nodes"]),
            barriers=str(figures["barriers"]),
            peak=truth_table.megabytes(figures["peak_after_bytes"] - figures["fixed_bytes"]),
        )
    return texts


def against(ours, theirs):
    """What the other binary reached."""
    status, figures, seconds = theirs
    if status != 0:
        reached, worse = ("infeasible" if status == INFEASIBLE else figures), "–"
    else:
        reached = percent(figures["overhead"])
        worse = f"{100 * (ours[1]['overhead'] - figures['overhead']):+.2f}" if ours[0] == 0 else "–"
    return {"other overhead": reached, "points worse": worse, "other seconds": f"{seconds:.2f}"}


class Table:
    """A Markdown table on standard output, and the same as CSV."""

    def __init__(self, columns, path):
        self.columns = columns
        self.file = open(path, "w", newline="") if path else None
        self.csv = csv.writer(self.file) if path else None
        print(truth_table.line(columns))
        print(truth_table.line("---" for _ in columns), flush=True)
        self._write(columns)

    def add(self, texts):
        cells = [texts[column] for column in self.columns]
        print(truth_table.line(cells), flush=True)
        self._write(cells)

    def _write(self, cells):
        if self.csv:
            self.csv.writerow(cells)
            self.file.flush()


def compare_budgets(args, graphs):
    columns = COLUMNS + (["other overhead", "points worse", "other seconds"] if args.against else [])
    table = Table(columns, args.csv)
    failed = 0
    for graph in graphs:
        for budget in args.budgets:
            ours = plan(args.binary, graph, budget, args.timeout)
            texts = row(graph, budget, ours)
            if args.against:
                texts.update(against(ours, plan(args.against, graph, budget, args.timeout)))
            failed += ours[0] not in (0, INFEASIBLE)
            table.add(texts)
            if ours[0] is None:
                break  # smaller budgets take longer
    return failed


def plan_together(binary, graph, budgets, timeout):
    """What `plan` says of each of the budgets, by one run of `ckpt-opt sweep`."""
    command = [binary, "sweep", graph.path]
    for budget in budgets:
        command += ["--budget", budget]
    status, figures, seconds = run(command, graph, timeout)
    if status != 0:
        return [(status, figures, seconds) for _ in budgets]
    rows = figures["strategies"][0]["rows"]
    return [(0 if row["fits"] else INFEASIBLE, dict(row, fixed_bytes=figures["fixed_bytes"]), seconds) for row in rows]


def sweep(args, graphs):
    """Returns how many graphs broke a rule."""
    table = Table(["graph", "budgets", "infeasible", "over budget", "rises", "largest rise", "where", "seconds"], args.csv)
    failed = 0
    for graph in graphs:
        start = time.monotonic()
        status, figures, _ = plan(args.binary, graph, "min", args.timeout)
        if status != 0:
            table.add(dict(dict.fromkeys(table.columns, "–"), graph=graph.name, where=str(figures)))
            failed += 1
            continue
        low, high = figures["budget_bytes"], figures["peak_before_bytes"]
        budgets = [low + (high - low) * step // (args.sweep - 1) for step in range(args.sweep)]
        if args.together:
            outcomes = plan_together(args.binary, graph, [str(budget) for budget in budgets], args.timeout)
        else:
            outcomes = [plan(args.binary, graph, str(budget), args.timeout) for budget in budgets]
        reached = [(budget, figures) for budget, (status, figures, _) in zip(budgets, outcomes) if status == 0]
        over = sum(figures["peak_after_bytes"] > budget for budget, figures in reached)
        rises = []
        for i, (budget, figures) in enumerate(reached):
            least = min((before["overhead"] for _, before in reached[:i]), default=float("inf"))
            if figures["overhead"] > least + EQUAL:
                rises.append((figures["overhead"] - least, budget))
        part = [f"{100 * (budget - figures['fixed_bytes']) / (high - figures['fixed_bytes']):.0f}" for _, budget in rises]
        table.add({
            "graph": graph.name,
            "budgets": str(len(budgets)),
            "infeasible": str(len(budgets) - len(reached)),
            "over budget": str(over),
            "rises": str(len(rises)),
            "largest rise": f"{100 * max(rises, default=(0, 0))[0]:.2f} points",
            "where": "fixed + " + " ".join(part) + " %" if rises else "–",
            "seconds": f"{time.monotonic() - start:.1f}",
        })
        failed += bool(rises) or over > 0 or len(reached) < len(budgets)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", metavar="DIR", default=os.path.join(os.path.dirname(TOOLS), "testdata", "models"))
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"])
    parser.add_argument("--budgets", nargs="+", metavar="SIZE", default=BUDGETS)
    parser.add_argument("--sizes", nargs="*", type=int, metavar="N", default=[1000, 10000])
    parser.add_argument("--against", metavar="BINARY")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=600)
    parser.add_argument("--sweep", nargs="?", type=int, const=50, metavar="N")
    parser.add_argument("--together", action="store_true", help="sweep by one run of ckpt-opt sweep for each graph")
    args = parser.parse_args()

    def wanted(name):
        return any(fnmatch.fnmatch(name, pattern) for pattern in args.only)

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(args.binary))), "generated")
    graphs = [graph for graph in real_graphs(args.models) if wanted(graph.name)]
    graphs += generated_graphs(folder, args.sizes, wanted)
    if not graphs:
        parser.error("no such graph")
    if args.sweep is not None and args.sweep < 2:
        parser.error("a sweep takes at least two budgets")
    failed = sweep(args, graphs) if args.sweep else compare_budgets(args, graphs)
    if failed:
        print(f"\n{failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
