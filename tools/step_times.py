"""How long steps of two graphs take, by turns in one process, so that a busy machine slows both.

Usage: step_times.py ORIGINAL REWRITTEN --dim NAME=N ... [--settings lean|no-pattern|default] [--level enable_all] [--rounds N]
           [--disable-optimizers "NAME;NAME"] [--device cuda [--provider-options JSON]]

Prints JSON: the least seconds of CPU time of each (on a GPU: of time), and their ratio less one ("added"), after one round that does
not count. One thread, DEFAULT order, DISABLE_ALL unless told otherwise. The default settings have their arena: without it, memory is taken from
the system anew in every step, and zeroed page by page, which can be as much as the plan adds.
"""

import argparse
import json
import time

import onnxruntime as ort

from run_step import Device, bound_step, load_model, session_options


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--settings", choices=["lean", "no-pattern", "default"], default="default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--disable-optimizers", metavar="NAME;NAME", help="optimizers of the runtime that are switched off for both")
    parser.add_argument("--level", choices=["disable_all", "enable_all"], default="disable_all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--provider-options", type=json.loads, default={}, metavar="JSON", help="what the device's provider is told")
    return parser


def compare(original, rewritten, args):
    """Both graphs are fed what is made for the first."""
    args.seed, args.expose_statistics, args.inputs_of = 1, False, original
    args.threads, args.level, args.order, args.no_arena, args.deterministic = 1, args.level, "default", False, False
    options = session_options(args, None)
    device = Device(args.device, args.provider_options, has_arena=True)
    clock = time.thread_time if device.name == "cpu" else time.perf_counter
    runs, values = [], None
    for path in (original, rewritten):
        model, arrays, outputs, _ = load_model(path, args)
        session = ort.InferenceSession(model, options, providers=device.providers)
        if values is None:
            values = {name: device.value(array) for name, array in arrays.items()}
        runs.append((session, outputs))
    rounds = []
    for _ in range(args.rounds + 1):
        seconds = []
        for session, outputs in runs:
            io = bound_step(session, values, outputs, device=device.name)
            start = clock()
            session.run_with_iobinding(io)
            seconds.append(clock() - start)
            del io
        rounds.append(seconds)
    first, second = (min(column) for column in zip(*rounds[1:]))
    return {"original": first, "rewritten": second, "added": second / first - 1, "rounds": rounds[1:]}


def main():
    parser = arguments(__doc__)
    parser.add_argument("original")
    parser.add_argument("rewritten")
    args = parser.parse_args()
    print(json.dumps(compare(args.original, args.rewritten, args)))


if __name__ == "__main__":
    main()
