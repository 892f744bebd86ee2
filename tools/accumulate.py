"""Adds up gradients over some steps of a lowered graph, in the memory of its buffers and beside it.

Usage: accumulate.py LOWERED [--dim NAME=N]... [--settings lean|default]

The new value of a buffer is an output of a lowered graph. Bound to memory of its own, it is fed back; bound to that of the buffer,
it is there already. The first step overwrites what is in the buffers. Exit status 1 if a bit differs.
"""

import argparse
import sys

import numpy as np
import onnx
import onnxruntime as ort

from model_inputs import Inputs

BUFFER, OUT = ".accumulation.buffer", ".accumulation.out"
STEPS = 3


def added_up(session, arrays, flags, in_place):
    """The buffers after some steps."""
    # On the CPU a value is the memory of its array.
    arrays = {name: array.copy() for name, array in arrays.items()}
    new = {name: arrays[name] if in_place else np.empty_like(arrays[name]) for name in arrays if name.endswith(BUFFER)}
    for step in range(STEPS):
        bound = session.io_binding()
        for name in flags:
            arrays[name][...] = step == 0
        for name, array in arrays.items():
            bound.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for output in session.get_outputs():
            array = new.get(output.name.removesuffix(OUT) + BUFFER)
            if array is None:
                bound.bind_output(output.name, "cpu")
            else:
                bound.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(array))
        session.run_with_iobinding(bound)
        if not in_place:
            for name, array in new.items():
                arrays[name][...] = array
    return {name: arrays[name] for name in new}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lowered")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--settings", choices=["lean", "default"], default="default")
    args = parser.parse_args()
    model = onnx.load(args.lowered, load_external_data=False)
    dims = {name: int(size) for name, size in (text.split("=") for text in args.dim)}
    arrays = Inputs(model, dims).make()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = options.enable_mem_reuse = args.settings == "default"
    session = ort.InferenceSession(args.lowered, options, providers=["CPUExecutionProvider"])
    flags = [value.name for value in session.get_inputs() if value.type == "tensor(bool)"]
    beside, in_place = (added_up(session, arrays, flags, where) for where in (False, True))
    differing = [name for name, array in beside.items() if array.tobytes() != in_place[name].tobytes()]
    moved = sum(bool(array.any()) for array in beside.values())
    print(f"{len(beside)} buffers, {moved} not zero, {len(differing)} differ in place", *differing[:10])
    return 1 if differing or not moved else 0


if __name__ == "__main__":
    sys.exit(main())
