"""Plans the networks of Table 1 of Kusumoto et al. (2019) with every strategy, at the table's batch sizes.

Usage: published_table.py --binary target/release/ckpt-opt --models DIR [--only NAME ...] [--json FILE]
                          [--strategies NAME,...] [--time-limit SECONDS]

For each network that DIR holds: the peak of the unmodified graph and the smallest peak that each strategy
reaches, everything included (parameters, accumulation buffers, batch), in GB (10^9 bytes); behind each the
reduction, and for the strategies of the paper's table the paper's reduction in brackets. All peaks are exact
figures of rewritten, verified graphs. Exit status 1 if any strategy reaches less than auto.
"""

import argparse
import json
import os
import subprocess
import sys

# Table 1: batch; peak of the unmodified network in GB; reduction in % by strategy.
# lower-set-approx-memory is "ApproxDP + MC", lower-set-approx "ApproxDP + TC", and so on; chen-budget is "Chen's".
PAPER_COLUMNS = ["lower-set-approx-memory", "lower-set-approx", "lower-set-exact-memory", "lower-set-exact", "chen-budget"]
PAPER = {
    "pspnet": (2, 9.4, (71, 67, 70, 66, 58)),
    "unet": (8, 9.1, (45, 26, 48, 42, 18)),
    "resnet50": (96, 8.9, (62, 51, 62, 51, 59)),
    "resnet152": (48, 9.2, (75, 73, 75, 73, 74)),
    "vgg19": (64, 7.0, (36, 22, 36, 22, 34)),
    "densenet161": (32, 8.5, (81, 78, 80, 78, 79)),
    "googlenet": (256, 8.5, (39, 36, 39, 31, 24)),
}

WHY = """\
Where the figures differ from the paper's:
- The paper's peaks are Chainer's on a K40c, without gradient accumulation; here they are ONNX Runtime's, and the
  caller owns an accumulation buffer as large as the parameters, which nothing can reduce. That weighs most in vgg19.
- The unmodified graph is another: it runs in ONNX Runtime's DEFAULT order, with in-place activations, and frees
  what the backward part does not read; U-Net is 560x560 instead of 572x572, with padding.
- Convolution workspace is counted here, and is that of the CPU's kernels; the paper's formulas leave it out.
- Each strategy takes the smallest peak of all its plans, by exact simulation, also for budgets B above the
  smallest feasible one, and in the better of two orders; the paper takes the smallest feasible B.
"""


def compare(binary, path, batch, strategies, time_limit):
    command = [binary, "compare", path, "--dim", f"batch={batch}", "--budget", "fixed+100%", "--json", "--quiet"]
    command += ["--order", "any", "--level", "any"]
    if strategies:
        command += ["--strategies", strategies]
    if time_limit:
        command += ["--time-limit", str(time_limit)]
    result = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True)
    if result.returncode != 0:
        sys.exit(f"{path}: ckpt-opt compare ended with status {result.returncode}")
    return json.loads(result.stdout)


def reduction(before, after):
    return 100.0 * (before - after) / before


def rows(results):
    """Lines of the table, and the strategies that need less than auto, by network."""
    names = []
    for result in results.values():
        names += [s["strategy"] for s in result["strategies"] if s["strategy"] not in names]
    below = {}
    lines = [f"{'':<26}" + "".join(f"{network:>22}" for network in results)]
    lines.append(f"{'batch':<26}" + "".join(f"{PAPER[network][0]:>22}" for network in results))
    unmodified = (f"{result['peak_before_bytes'] / 1e9:.2f}          " for result in results.values())
    lines.append(f"{'unmodified':<26}" + "".join(f"{cell:>22}" for cell in unmodified))
    for name in names:
        line = f"{name:<26}"
        for network, result in results.items():
            by_name = {s["strategy"]: s for s in result["strategies"]}
            found = by_name.get(name)
            if found is None or found["refused"]:
                line += f"{'refused' if found else '':>22}"
                continue
            before, after = result["peak_before_bytes"], found["smallest_peak_bytes"]
            published = ""
            if name in PAPER_COLUMNS:
                published = f"({PAPER[network][2][PAPER_COLUMNS.index(name)]})"
            cell = f"{after / 1e9:.2f} -{reduction(before, after):.0f}% {published:<4}"
            line += f"{cell:>22}"
            own = by_name.get("auto")
            if own and after < own["smallest_peak_bytes"]:
                below.setdefault(network, []).append(name)
        lines.append(line)
    return lines, below


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--strategies", default="")
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = {}
    for network, (batch, _, _) in PAPER.items():
        path = os.path.join(arguments.models, network + ".onnx")
        if os.path.exists(path) and (not arguments.only or network in arguments.only):
            print(f"planning {network} at batch {batch}", file=sys.stderr)
            results[network] = compare(arguments.binary, path, batch, arguments.strategies, arguments.time_limit)
    if not results:
        sys.exit(f"{arguments.models} has none of {', '.join(PAPER)}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file)
    lines, below = rows(results)
    print("\n".join(lines))
    print()
    print(WHY, end="")
    for network, names in below.items():
        print(f"below auto on {network}: {', '.join(names)}")
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()
