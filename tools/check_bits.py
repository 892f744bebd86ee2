"""Runs one step of a training graph and of rewritten forms of it, and compares the bits of all results.

Usage: check_bits.py ORIGINAL REWRITTEN... --dim NAME=N ...

Quicker than check_model.py: DEFAULT order at DISABLE_ALL in lean settings only. Prints a JSON list with, for each
rewritten graph, `file`, `differing` (the results whose bits differ) and `peak_bytes` (beyond what the caller owns).
Exit status 0 if none differ.
"""

import argparse
import json
import sys

import check_model
import measure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("rewritten", nargs="+")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    args = parser.parse_args()

    def step(path):
        return measure.step(path, dims=args.dim, seed=check_model.SEED, expose_statistics=True, no_arena=True,
                            inputs_of=args.original)

    expected = step(args.original)["digests"]
    results = []
    for path in args.rewritten:
        done = step(path)
        names = sorted(set(expected) | set(done["digests"]))
        differing = [name for name in names if done["digests"].get(name) != expected.get(name)]
        results.append({"file": path, "differing": differing, "peak_bytes": done["peak_bytes"]})
    print(json.dumps(results))
    return 1 if any(result["differing"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
