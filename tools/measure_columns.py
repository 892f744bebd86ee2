"""What convolutions allocate besides their results in releases that take the columns of whole images: writes testdata/columns.json.

    cargo build -p malloc-counter
    tools/setup.sh stock 1.26.0
    .venv-stock-1.26.0/bin/python tools/measure_columns.py [--check]

Each case is one node, run with several numbers of threads, without arena, pattern and reuse. With --check nothing is written: it fails
where a workspace is not what is recorded.
"""

import json
import os
import sys

from measure import TOOLS, malloc_counter

if "CKPT_COUNTED" not in os.environ:
    environment = dict(os.environ, LD_PRELOAD=malloc_counter(), CKPT_COUNTED="1")
    os.execve(sys.executable, [sys.executable] + sys.argv, environment)

import numpy as np
import onnxruntime as ort
from onnx import helper

from counters import MallocCounter

TARGET = os.path.join(TOOLS, "..", "testdata", "columns.json")
THREADS = (1, 2, 5, 20)
# What the runtime allocates for its own bookkeeping varies by less.
BOOKKEEPING = 24 << 10
# Images, channels, size, filters, kernel, groups, stride.
CASES = [
    (1, 16, 32, 32, 3, 1, 1), (2, 16, 32, 32, 3, 1, 1), (8, 16, 32, 32, 3, 1, 1), (40, 16, 32, 32, 3, 1, 1),
    # More filters than windows; as many.
    (8, 16, 8, 256, 3, 1, 1), (8, 16, 8, 64, 3, 1, 1),
    # Results are larger than columns, or neither is as large as a segment.
    (8, 2, 32, 64, 3, 1, 1), (8, 1, 32, 64, 3, 1, 1), (8, 16, 64, 200, 3, 1, 1), (3, 4, 8, 5, 3, 1, 1),
    (8, 64, 8, 2, 3, 1, 1), (8, 16, 32, 1, 3, 1, 1),
    # Products without columns, and those that a stride keeps from it.
    (8, 16, 32, 32, 1, 1, 1), (8, 2, 64, 64, 1, 2, 1), (8, 16, 32, 32, 1, 1, 2), (8, 2, 64, 64, 1, 1, 2),
    # Groups.
    (1, 16, 32, 32, 3, 4, 1), (8, 16, 32, 32, 3, 4, 1), (8, 16, 32, 16, 3, 16, 1), (8, 16, 32, 32, 3, 16, 2),
]


counter = MallocCounter()


def measured(case, threads):
    images, channels, size, filters, kernel, group, stride = case
    shapes = {"x": [images, channels, size, size], "w": [filters, channels // group, kernel, kernel]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4, group=group, strides=[stride] * 2)
    graph = helper.make_graph([node], "case", inputs, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    (result,) = session.run(None, fed)
    took = counter.during(lambda: session.run(None, fed))
    return {**shapes, "group": group, "stride": stride, "threads": threads, "workspace": took - result.nbytes}


def main():
    cases = [measured(case, threads) for case in CASES for threads in THREADS]
    if "--check" not in sys.argv[1:]:
        with open(TARGET, "w") as file:
            file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
        return 0
    with open(TARGET) as file:
        recorded = json.load(file)
    wrong = [
        f"{case}, recorded {known['workspace']}" for case, known in zip(cases, recorded)
        if abs(case["workspace"] - known["workspace"]) > BOOKKEEPING
    ]
    print("\n".join(wrong) or f"{len(cases)} cases, all as recorded")
    return 1 if wrong or len(cases) != len(recorded) else 0


if __name__ == "__main__":
    sys.exit(main())
