"""Plans training graphs with different operator variants, and prints what each of them gives.

Usage: ablation.py --binary target/release/ckpt-opt --models DIR [--only NAME ...] [--budgets B ...]
           [--json FILE]

After Figure 4 of MONeT (Shah et al., 2021): recomputation alone (`none`), with one group of variants, with all.
A row of the table is a graph and a budget; its cells are the overhead in % of one step's time, or
`-` where no plan fits; at `min`, the smallest peak in MB beyond what the caller owns, and the overhead there.

Below the table stands whether `all` was never worse than `none` (more overhead at a budget, or a larger smallest
peak), how much less overhead it has on average, and whose smallest peak is smaller. Exit status 0 if it was
never worse, and for every graph the overhead is at least a fifth less on average or the smallest peak smaller.
"""

import argparse
import json
import os
import subprocess
import sys

GROUPS = ["none", "convolution", "output-activated", "masks", "copies", "all"]
BUDGETS = ["fixed+90%", "fixed+70%", "fixed+50%", "fixed+35%", "min"]
# As many images as make the activations more than the weights.
GRAPHS = {"vgg16": 16, "resnet50": 4, "googlenet": 4, "unet": 2, "mobilenet_v2": 4}
INFEASIBLE = 3
# A smallest peak counts as smaller from this part on.
SMALLER = 0.003
FIFTH = 0.2


def plan(binary, path, batch, budget, groups):
    """The result as the program prints it, or None if no plan fits."""
    command = [binary, path, os.devnull, "--dim", "batch=%d" % batch, "--budget", budget]
    command += ["--runtime-settings", "lean", "--variants", groups, "--dry-run", "--json", "--quiet", "--order", "any", "--level", "any"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode == INFEASIBLE:
        return None
    if done.returncode != 0:
        raise SystemExit("%s: %s" % (" ".join(command), done.stderr.strip()))
    return json.loads(done.stdout)


def smallest(result):
    return (result["peak_after_bytes"] - result["fixed_bytes"]) / 1e6


def cell(result, budget):
    if result is None:
        return "-"
    overhead = "%.2f" % (100 * result["overhead"])
    return overhead if budget != "min" else "%.1f MB, %s" % (smallest(result), overhead)


def is_worse(none, both, budget):
    """Is the plan with all variants worse than that with none?"""
    if none is None or both is None:
        return none is not None
    if budget == "min":
        return smallest(both) > smallest(none)
    return both["overhead"] > none["overhead"]


def verdict(rows):
    """One sentence for each graph, and whether all is well; `rows` are (graph, budget, results)."""
    sentences, well = [], True
    for graph in dict.fromkeys(row[0] for row in rows):
        mine = [row[1:] for row in rows if row[0] == graph]
        worse = [budget for budget, found in mine if is_worse(found["none"], found["all"], budget)]
        parts = [
            1 - found["all"]["overhead"] / found["none"]["overhead"]
            for budget, found in mine
            if budget != "min" and found["none"] and found["all"] and found["none"]["overhead"] > 0
        ]
        less = sum(parts) / len(parts) if parts else 0.0
        lower = [
            1 - smallest(found["all"]) / smallest(found["none"])
            for budget, found in mine
            if budget == "min" and found["none"] and found["all"]
        ]
        enough = less >= FIFTH or any(part > SMALLER for part in lower)
        words = "%s: %s; %.0f %% less overhead on average" % (
            graph,
            "never worse" if not worse else "worse at " + ", ".join(worse),
            100 * less,
        )
        if lower:
            words += "; smallest peak %.1f %% smaller" % (100 * lower[0])
        sentences.append(words + ("" if enough else " (neither is enough)"))
        well &= enough and not worse
    return sentences, well


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print("| graph | batch | budget | " + " | ".join(GROUPS) + " | chosen by all |")
    print("| --- " * (len(GROUPS) + 4) + "|")
    rows = []
    for graph, batch in GRAPHS.items():
        path = os.path.join(arguments.models, graph + ".onnx")
        if (arguments.only and graph not in arguments.only) or not os.path.exists(path):
            continue
        for budget in arguments.budgets:
            found = {g: plan(arguments.binary, path, batch, budget, g) for g in GROUPS}
            rows.append((graph, budget, found))
            cells = [cell(found[group], budget) for group in GROUPS]
            chosen = "-" if found["all"] is None else str(found["all"]["variants"])
            print("| %s |" % " | ".join([graph, str(batch), budget] + cells + [chosen]), flush=True)
    sentences, well = verdict(rows)
    print("\n" + "\n".join("- " + sentence for sentence in sentences))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([{"graph": g, "budget": b, "plans": f} for g, b, f in rows], file, indent=1)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
