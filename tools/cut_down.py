"""Cuts a graph of which the wrong peak is predicted down to a small one that shows it.

Usage: cut_down.py MODEL OUT --dim NAME=N ... [--binary target/release/ckpt-opt] [--settings default|lean] [--level enable_all|extended|basic|disable_all]
           [--order default|priority] [--bytes N] [--runtime stock]

A node goes, with all that reads what it writes, as long as prediction and measurement stay N bytes apart (20,000 without --bytes): half of
the nodes at a time first, in the end one by one. A graph of a thousand nodes takes some minutes. Exit status 1 if they are not apart.
With --runtime stock, .venv-stock of `setup.sh stock` measures, without the optimizers that files for it ask to switch off.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

import onnx

import check_model
import measure

OFF = ["TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider", check_model.BLOCKS]
LEVELS = {"enable_all": "all", "extended": "extended", "basic": "basic", "disable_all": "disable"}
ORDERS = {"default": "DEFAULT", "priority": "PRIORITY_BASED"}


def cut_down(nodes, is_wrong, told=lambda left: None):
    """The positions of the nodes that are left when none can go any more; `nodes` are what each reads and what it writes."""
    readers = collections.defaultdict(list)
    for place, (reads, _) in enumerate(nodes):
        for tensor in reads:
            readers[tensor].append(place)

    def gone_with(places):
        gone, open_ = set(places), list(places)
        while open_:
            for tensor in nodes[open_.pop()][1]:
                fresh = [reader for reader in readers[tensor] if reader not in gone]
                gone.update(fresh)
                open_ += fresh
        return gone

    left, size = set(range(len(nodes))), max(len(nodes) // 2, 1)
    while True:
        before, places = len(left), sorted(left, reverse=True)
        for start in range(0, len(places), size):
            fewer = left - gone_with([place for place in places[start:start + size] if place in left])
            if fewer and len(fewer) < len(left) and is_wrong(fewer):
                left = fewer
        told(len(left))
        if size == 1 and len(left) == before:
            return left
        size = max(size // 2, 1)


def part(model, places):
    """The model with these nodes alone, and of the rest what they need."""
    smaller = onnx.ModelProto()
    smaller.CopyFrom(model)
    graph = smaller.graph
    kept = [model.graph.node[place] for place in sorted(places)]
    read, written = {tensor for node in kept for tensor in node.input}, {tensor for node in kept for tensor in node.output}
    for field, there in ((graph.output, written), (graph.value_info, written), (graph.initializer, read)):
        wanted = [value for value in field if value.name in there]
        del field[:]
        field.extend(wanted)
    del graph.node[:]
    graph.node.extend(kept)
    return smaller


def apart(binary, path, dims, settings, level, order, runtime):
    """By how many bytes prediction and measurement differ; 0 where the graph cannot be looked at or run."""
    command = [binary, "inspect", path, "--json", "--runtime-settings", settings, "--level", LEVELS[level], "--runtime", runtime]
    done = subprocess.run(command + [f"--dim={dim}" for dim in dims], capture_output=True, text=True)
    if done.returncode:
        return 0
    said = json.loads(done.stdout)
    try:
        ran_by = {"python": check_model.python_of(runtime), "disabled": OFF} if runtime != check_model.TRAINING else {}
        took = measure.step(path, dims, order=order, level=level, settings=settings, no_arena=True, steps=2, **ran_by)["peak_bytes"]
    except measure.StepFailed:
        return 0
    return abs(said["orders"][ORDERS[order]]["peak_bytes"] - said["fixed_bytes"] - took)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--binary", default=os.path.join(os.path.dirname(measure.TOOLS), "target", "release", "ckpt-opt"))
    parser.add_argument("--settings", choices=["default", "lean"], default="default")
    parser.add_argument("--level", choices=list(LEVELS), default="enable_all")
    parser.add_argument("--order", choices=list(ORDERS), default="default")
    parser.add_argument("--bytes", type=int, default=20_000)
    parser.add_argument("--runtime", choices=check_model.RUNTIMES, default=check_model.TRAINING)
    args = parser.parse_args()
    model = onnx.load(args.model)
    nodes = [(list(node.input), list(node.output)) for node in model.graph.node]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "part.onnx")

        def is_wrong(places):
            onnx.save(part(model, places), path)
            return apart(args.binary, path, args.dim, args.settings, args.level, args.order, args.runtime) >= args.bytes

        if not is_wrong(range(len(nodes))):
            print(f"{args.model}: prediction and measurement are less than {args.bytes} bytes apart", file=sys.stderr)
            return 1
        left = cut_down(nodes, is_wrong, lambda left: print(f"{left} of {len(nodes)} nodes are left", file=sys.stderr))
    onnx.save(part(model, left), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
