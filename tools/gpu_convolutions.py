"""What each convolution of a graph takes in ONNX Runtime's CUDA provider, with each choice of cuDNN's algorithms.

Usage: gpu_convolutions.py TABLE.json

TABLE is what `ckpt-opt conv-table` printed of a graph of standard operators (Conv and ConvTranspose). Each product becomes a graph of one
node, run with each of CHOICES. Prints TABLE with a list `measured` for each product: the provider's options, the workspace in the
first step and in later ones (bytes: what the node takes beyond its output), and the least time of ten steps, in nanoseconds.
"""

import itertools
import json
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from counters import CudaMemory

CHOICES = [{"cudnn_conv_algo_search": search, "cudnn_conv_use_max_workspace": most}
           for search, most in itertools.product(("HEURISTIC", "DEFAULT", "EXHAUSTIVE"), "10")]
TYPES = {"float": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}
STEPS = 10


def model(product):
    """The convolution alone; sizes are not declared, so that nothing is known of them before it runs."""
    kind, _ = TYPES[product["element_type"]]
    names = "xwb"[:len(product["inputs"])]
    attributes = {name: value for name, value in product["attributes"].items()}
    node = helper.make_node(product["operator"], list(names), ["y"], "node", **attributes)
    infos = [helper.make_tensor_value_info(name, kind, [None] * len(shape)) for name, shape in zip(names, product["inputs"])]
    graph = helper.make_graph([node], "convolution", infos, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def measure(product, choice, memory):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    provider = ("CUDAExecutionProvider", {**choice, **memory.provider_options()})
    session = ort.InferenceSession(model(product).SerializeToString(), options, providers=[provider])
    random = np.random.default_rng(0)
    _, dtype = TYPES[product["element_type"]]
    values = [ort.OrtValue.ortvalue_from_numpy((random.random(shape, np.float32) - 0.5).astype(dtype), "cuda", 0)
              for shape in product["inputs"]]
    workspaces, times = [], []
    for _ in range(STEPS):
        io = session.io_binding()
        for name, value in zip("xwb", values):
            io.bind_ortvalue_input(name, value)
        io.bind_output("y", "cuda")
        start, before = time.perf_counter(), memory.live()
        peak = memory.during(lambda: session.run_with_iobinding(io))
        times.append(time.perf_counter() - start)
        workspaces.append(peak - (memory.live() - before))
        del io
    return {**choice, "first_workspace_bytes": workspaces[0], "workspace_bytes": max(workspaces[1:]), "time_ns": round(1e9 * min(times))}


def main():
    with open(sys.argv[1]) as file:
        table = json.load(file)
    memory = CudaMemory()
    for product in table["convolutions"]:
        product["measured"] = []
        for choice in CHOICES:
            try:
                product["measured"].append(measure(product, choice, memory))
            except Exception as error:  # what cuDNN refuses is worth knowing of
                product["measured"].append({**choice, "error": str(error)[:200]})
    json.dump(table, sys.stdout)
    print()


if __name__ == "__main__":
    main()
