"""Runs a training graph in the runtime with training and its lowered form in one without, and compares both.

Usage: lowered_model.py ORIGINAL LOWERED --dim NAME=N ... [--stock PYTHON] [--steps N] [--json]
       lowered_model.py --table DIR [--only NAME ...] [--binary CKPT_OPT]

Compared are all outputs; for an accumulation buffer the value that the original leaves in the caller's memory and the
one that comes out of the lowered graph. Time is the fastest of some steps, the peak what a step allocates beyond what
was live before it, both on one thread with the settings of --settings at ENABLE_ALL. Exit status 1 if a loss differs by
more than 1e-5 of itself, or a gradient by more than TOLERANCE of its norm.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOLERANCE = 5e-2
# Of the largest gradient's root mean square: as in check_model.py.
NOISE = 1e-3
BUFFER, OUT = ".accumulation.buffer", ".accumulation.out"
# The order of a random number generator's draws is the runtime's own.
SEED = 1


def results(path):
    """Every array of a step by name; buffers by the name of the output that stands for them."""
    with np.load(path) as file:
        names = [str(name) for name in file["names"]]
        return {name: file[str(i)] for i, name in enumerate(names)}


def distance(one, other, noise):
    """How far two arrays are apart, relative to the first one's norm; one that is zero but for rounding has no digits to
    agree on."""
    one, other = np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel()
    if one.shape != other.shape:
        return float("inf")
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(one), noise * max(one.size, 1) ** 0.5, 1e-30))


def compared(original, lowered):
    """Name and distance of everything that both have."""
    pairs = {}
    largest = [np.sqrt(np.mean(np.square(value, dtype=np.float64))) for name, value in original.items()
               if name.endswith(BUFFER) and value.size]
    noise = NOISE * max(largest, default=0.0)
    for name, value in lowered.items():
        if name.startswith("input:"):
            pairs[name] = float("inf") if "running" not in name else 0.0
            continue
        stands_for = "input:" + name[: -len(OUT)] + BUFFER if name.endswith(OUT) else name
        before = original.get(stands_for)
        if before is None:
            # A buffer that stayed zero.
            before = np.zeros_like(value)
        pairs[name] = distance(before, value, noise)
    return pairs


def compare(original, lowered, dims, settings, args):
    """Both, a step each in a process of its own, and how far they are apart."""
    common = dict(dims=dims, level="enable_all", settings=settings, no_arena=True, threads=args.threads, steps=args.steps,
                  seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        first, second = (os.path.join(folder, name) for name in ("original.npz", "lowered.npz"))
        before = measure.step(original, dump=first, **common)
        after = measure.step(lowered, dump=second, python=args.stock, inputs_of=original, caller_outputs=OUT, **common)
        pairs = compared(results(first), results(second))
    worst = sorted(pairs.items(), key=lambda pair: -pair[1])
    result = {
        "outputs": len(pairs),
        "median": float(np.median([gap for _, gap in worst])),
        "worst": dict(worst[:5]),
        "seconds": [min(before["seconds_per_step"]), min(after["seconds_per_step"])],
        "peak": [before["peak_bytes"], after["peak_bytes"]],
        "not_finite": [before["not_finite"], after["not_finite"]],
    }
    result["time_ratio"] = result["seconds"][1] / result["seconds"][0]
    result["peak_ratio"] = result["peak"][1] / result["peak"][0]
    losses = [gap for name, gap in pairs.items() if "loss" in name and not name.endswith(OUT)]
    result["differs"] = any(gap > 1e-5 for gap in losses) or worst[0][1] > TOLERANCE
    return result


def models(folder, only):
    """Name, file and dims of the graphs of truth_models.json in a folder, or in its folder zoo, that 1.19.2 runs."""
    with open(os.path.join(ROOT, "tools", "truth_models.json")) as file:
        known = json.load(file)
    for name, entry in known.items():
        files = [os.path.join(folder, *place, f"{name}.onnx") for place in ((), ("zoo",))]
        found = [file for file in files if os.path.exists(file)]
        if found and "static" not in entry and (not only or name in only):
            yield name, found[0], [f"{dim}={size}" for dim, size in entry["dims"].items()]


def table(args):
    """A row for each graph, and geometric means."""
    print("| model | dims | outputs | distance, median | worst | default: time | peak | lean: time | peak |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        lowered = os.path.join(folder, "lowered.onnx")
        for name, original, dims in models(args.table, args.only):
            subprocess.run([args.binary, "lower", original, lowered], check=True, stdout=subprocess.DEVNULL)
            both = [compare(original, lowered, dims, settings, args) for settings in ("default", "lean")]
            ratios.append([one[key] for one in both for key in ("time_ratio", "peak_ratio")])
            cells = [name, " ".join(dims), both[0]["outputs"], f"{both[0]['median']:.1e}",
                     f"{max(both[0]['worst'].values()):.1e}", *(f"{ratio:.2f}" for ratio in ratios[-1])]
            print("|", " | ".join(str(cell) for cell in cells), "|", flush=True)
    means = np.exp(np.mean(np.log(ratios), axis=0))
    print("| all | geometric mean | | | |", " | ".join(f"{mean:.2f}" for mean in means), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original", nargs="?")
    parser.add_argument("lowered", nargs="?")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--stock", default=os.path.join(ROOT, ".venv-stock", "bin", "python"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", default="default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", metavar="DIR", help="all graphs of truth_models.json in this folder, in both settings")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "ckpt-opt"))
    args = parser.parse_args()
    if args.table:
        return table(args)
    if not args.lowered:
        parser.error("expected ORIGINAL and LOWERED, or --table DIR")
    result = compare(args.original, args.lowered, args.dim, args.settings, args)
    if args.json:
        json.dump(result, sys.stdout)
        print()
    else:
        worst, gap = max(result["worst"].items(), key=lambda pair: pair[1])
        print(f"{os.path.basename(args.lowered)}: {result['outputs']} outputs, distance median {result['median']:.1e}, "
              f"worst {gap:.1e} ({worst}); time {result['time_ratio']:.2f} x, peak {result['peak_ratio']:.2f} x")
    sys.exit(result["differs"])


if __name__ == "__main__":
    main()
