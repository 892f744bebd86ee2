"""What a barrier of plans for stock builds costs on a GPU.

Usage: gpu_barriers.py [--count N]

Runs chains of Relu with a barrier between two of them and without, by turns. There are two forms of it, as passes/src/runtime/barrier.rs
writes them: Size, Min, Reshape; and Shape, Concat, Reshape. Prints, for a tensor of each size, the time of one Relu, and what one barrier
of either form adds: the least of 20 runs, over the number of nodes, in microseconds. Small tensors tell what the host does for a node; with
large ones the device is behind, and the host's work is hidden. The last columns say where the nodes of a barrier ran, with the copies
between host and device that the runtime put beside them.
"""

import argparse
import collections
import json
import os
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from counters import CudaMemory

RUNS = 20
ELEMENTS = [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]


FORMS = [None, "Size", "Shape"]


def chain(count, form):
    """`count` Relus, one after the other; a barrier of this form, if any, lets each wait for the one before the last."""
    nodes = [helper.make_node("Constant", [], ["zeros"], value=numpy_helper.from_array(np.zeros(2, np.int64)))]
    previous = last = "x"
    for index in range(count):
        read = last
        if form and index > 0:
            name = f"barrier_{index}"
            joins, empty = ("Min", {}) if form == "Size" else ("Concat", {"start": 0, "end": 0})
            axis = {} if form == "Size" else {"axis": 0}
            nodes += [helper.make_node(form, [previous], [f"{name}/size"], f"{name}/size", **empty),
                      helper.make_node(joins, [f"{name}/size", "zeros"], [f"{name}/shape"], f"{name}/shape", **axis),
                      helper.make_node("Reshape", [last, f"{name}/shape"], [f"{name}/y"], name)]
            read = f"{name}/y"
        nodes.append(helper.make_node("Relu", [read], [f"y{index}"], f"relu_{index}"))
        previous, last = last, f"y{index}"
    shape = ["rows", "columns"]
    graph = helper.make_graph(nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), last


def session(model, level, profile=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])


def run(running, value, output):
    io = running.io_binding()
    io.bind_ortvalue_input("x", value)
    io.bind_output(output, "cuda")
    start = time.perf_counter()
    running.run_with_iobinding(io)
    return time.perf_counter() - start


def places(count, form, level, value):
    """How many of a chain's nodes ran where, but for the Relus."""
    model, output = chain(count, form)
    with tempfile.TemporaryDirectory() as folder:
        running = session(model, level, os.path.join(folder, "p"))
        run(running, value, output)
        with open(running.end_profiling()) as file:
            events = json.load(file)
    found = collections.Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["args"]["op_name"] != "Relu":
            found[event["args"]["op_name"], event["args"]["provider"].removesuffix("ExecutionProvider")] += 1
    return ", ".join(f"{number} {operator} on {provider}" for (operator, provider), number in sorted(found.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, metavar="N", help="how many Relus a chain has")
    args = parser.parse_args()
    CudaMemory()  # loads CUDA's libraries
    print("| level | elements | a Relu, µs | a barrier by Size, µs | by Shape, µs | of a chain with 10 by Size | by Shape |")
    print("|---|---|---|---|---|---|---|")
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        runs = []
        for form in FORMS:
            model, output = chain(args.count, form)
            runs.append((session(model, level), output))
        for elements in ELEMENTS:
            value = ort.OrtValue.ortvalue_from_numpy(np.ones((2, elements // 2), np.float32), "cuda", 0)
            rounds = [[run(running, value, output) for running, output in runs] for _ in range(RUNS + 1)]
            without, *barriers = (min(column) for column in zip(*rounds[1:]))
            added = [f"{1e6 * (time - without) / (args.count - 1):.1f}" for time in barriers]
            row = [str(level).removeprefix("GraphOptimizationLevel."), elements, f"{1e6 * without / args.count:.1f}", *added]
            row += [places(10, form, level, value) for form in FORMS if form]
            print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
