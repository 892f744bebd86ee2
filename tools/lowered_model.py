"""Runs a training graph in the runtime with training and its lowered form in one without, and compares both.

Usage: lowered_model.py ORIGINAL LOWERED --dim NAME=N ... [--stock PYTHON] [--steps N] [--json]

Compared are all outputs; for an accumulation buffer the value that the original leaves in the caller's memory and the
one that comes out of the lowered graph. Time is the fastest of some steps, the peak what a step allocates beyond what
was live before it, both on one thread with the settings of --settings at ENABLE_ALL. Exit status 1 if a loss differs by
more than 1e-5 of itself, or a gradient by more than TOLERANCE of its norm.
"""

import argparse
import json
import os
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("lowered")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--stock", default=os.path.join(ROOT, ".venv-stock", "bin", "python"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", default="default")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    common = dict(dims=args.dim, level="enable_all", settings=args.settings, no_arena=True, threads=args.threads,
                  steps=args.steps, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        first, second = (os.path.join(folder, name) for name in ("original.npz", "lowered.npz"))
        before = measure.step(args.original, dump=first, **common)
        after = measure.step(args.lowered, dump=second, python=args.stock, inputs_of=args.original, caller_outputs=OUT,
                             **common)
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
    if args.json:
        json.dump(result, sys.stdout)
        print()
    else:
        print(f"{os.path.basename(args.lowered)}: {result['outputs']} outputs, distance median {result['median']:.1e}, "
              f"worst {worst[0][1]:.1e} ({worst[0][0]}); time {result['time_ratio']:.2f} x, peak {result['peak_ratio']:.2f} x")
    losses = [gap for name, gap in pairs.items() if "loss" in name and not name.endswith(OUT)]
    sys.exit(any(gap > 1e-5 for gap in losses) or worst[0][1] > TOLERANCE)


if __name__ == "__main__":
    main()
