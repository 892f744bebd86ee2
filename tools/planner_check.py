"""What ONNX Runtime's memory planner makes of random graphs: a reference for the simulation in Rust.

Usage: planner_check.py N DIR [--seed S]

Writes graphs 0.onnx to N-1.onnx to DIR, and DIR/measured.json: for each, by settings and order, the most that a
step allocates beyond what was live before it, in bytes. Needs the malloc counter preloaded. No arena:
only so do several sessions in one process measure the same as alone.

Half of the graphs have fixed shapes; in the others the first dimension is `batch`, which is 8. Any value may be
declared in `value_info`, or not. The graphs provoke reuse, in-place results, aliases, results that nobody
reads, broadcasts, shapes that are computed, and barriers.
"""

import argparse
import gc
import json
import os
import random

import numpy as np
import onnx
import onnxruntime as ort

from counters import MallocCounter

BATCH = 8
ROWS, COLUMNS = 64, 96
ORDERS = {"default": ort.ExecutionOrder.DEFAULT, "priority": ort.ExecutionOrder.PRIORITY_BASED}
SETTINGS = {"lean": (False, False), "no-pattern": (True, False), "pattern": (False, True), "default": (True, True)}
FLOAT = onnx.TensorProto.FLOAT


class Drawing:
    """A graph while it is drawn. Shapes are lists whose first item may be a name."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.batch = "batch" if self.random.random() < 0.5 else BATCH
        self.shapes, self.nodes, self.declared = {}, [], []
        self.initializers = [
            onnx.numpy_helper.from_array(np.full((COLUMNS, COLUMNS), 0.01, np.float32), "weight"),
            onnx.numpy_helper.from_array(np.array([0, -1], np.int64), "flat"),
            onnx.numpy_helper.from_array(np.array([0, ROWS, COLUMNS], np.int64), "cube"),
        ]
        self.inputs = {"x": [self.batch, ROWS, COLUMNS], "y": [self.batch, ROWS, COLUMNS], "z": [ROWS, COLUMNS]}
        self.shapes.update(self.inputs)

    def emit(self, operator, inputs, shapes, domain="", **attributes):
        """Appends a node; returns its outputs' names. A shape that is None is not for floats."""
        names = [f"t{len(self.nodes)}_{position}" for position in range(len(shapes))]
        self.nodes.append(onnx.helper.make_node(operator, inputs, names, name=f"n{len(self.nodes)}", domain=domain, **attributes))
        for name, shape in zip(names, shapes):
            if shape is not None:
                self.shapes[name] = shape
                if self.random.random() < 0.6:
                    self.declared.append(name)
        return names

    def pick(self, rank=None):
        names = [name for name, shape in self.shapes.items() if rank is None or len(shape) == rank]
        return self.random.choice(names[-5:] if self.random.random() < 0.6 else names)

    def like(self, name):
        same = [other for other, shape in self.shapes.items() if shape == self.shapes[name]]
        return self.random.choice(same[-4:])

    def step(self):
        kind, x = self.random.random(), self.pick()
        shape = self.shapes[x]
        if kind < 0.25:
            self.emit(self.random.choice(["Relu", "Sigmoid", "Tanh", "Exp", "Neg"]), [x], [shape])
        elif kind < 0.4:
            self.emit(self.random.choice(["Add", "Mul", "Sub"]), [x, self.like(x)], [shape])
        elif kind < 0.48:
            self.emit("Sum", [x, self.like(x), self.like(x)], [shape])
        elif kind < 0.56 and len(shape) == 3 and shape[2] == COLUMNS:
            self.emit("MatMul", [x, "weight"], [shape])
        elif kind < 0.62 and shape[1:] == [ROWS, COLUMNS]:
            self.emit("Reshape", [x, "flat"], [[shape[0], ROWS * COLUMNS]])
        elif kind < 0.66 and len(shape) == 2 and shape[1] == ROWS * COLUMNS:
            self.emit("Reshape", [x, "cube"], [[shape[0], ROWS, COLUMNS]])
        elif kind < 0.72 and shape[1:] == [ROWS, COLUMNS]:
            of_batch = shape[0] if self.random.random() < 0.5 else None
            mean = self.emit("ReduceMean", [x], [[of_batch or 1, 1, COLUMNS]], axes=[1] if of_batch else [0, 1], keepdims=1)[0]
            again = self.emit("Shape", [x], [None])[0]
            if self.random.random() < 0.5:
                mean = self.emit("PassThrough", [mean, self.pick()], [self.shapes[mean], None], domain="com.microsoft")[0]
            self.emit("Expand", [mean, again], [shape])
        elif kind < 0.76:
            self.emit("PassThrough", [x, self.pick()], [shape, None], domain="com.microsoft")
        elif kind < 0.8:
            self.emit("Identity", [x], [shape])
        elif kind < 0.84 and shape[-1] == COLUMNS:
            part = shape[:-1] + [COLUMNS // 2]
            self.emit("Split", [x], [part, part], axis=len(shape) - 1)
        elif kind < 0.88:
            other = self.like(x)
            self.emit("Concat", [x, other], [shape[:-1] + [2 * shape[-1]]], axis=len(shape) - 1)
        elif kind < 0.92:
            self.emit("Size", [x], [None])
        elif kind < 0.96:
            self.emit("Dropout", [x], [shape, None])
        else:
            self.emit("ReluGrad", [x, self.like(x)], [shape], domain="com.microsoft")

    def model(self):
        for _ in range(self.random.randint(15, 60)):
            self.step()
        info = onnx.helper.make_tensor_value_info
        read = {name for node in self.nodes for name in node.input}
        blocked = {name for node in self.nodes if node.op_type == "PassThrough" for name in node.output}
        floats = [name for node in self.nodes for name in node.output if name in self.shapes and name not in blocked]
        ends = [name for name in floats if name not in read and self.random.random() < 0.5] or floats[-1:]
        values = [info(name, FLOAT, self.shapes[name]) for name in self.declared if name not in ends]
        graph = onnx.helper.make_graph(
            self.nodes, "random", [info(name, FLOAT, shape) for name, shape in self.inputs.items()],
            [info(name, FLOAT, self.shapes[name]) for name in ends], self.initializers, value_info=values)
        opsets = [onnx.helper.make_opsetid("", 15), onnx.helper.make_opsetid("com.microsoft", 1)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def measured(model, settings, order, counter):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.execution_order = ORDERS[order]
    options.enable_mem_reuse, options.enable_mem_pattern = SETTINGS[settings]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    io = session.io_binding()
    values = []
    for info in model.graph.input:
        shape = [dim.dim_value or BATCH for dim in info.type.tensor_type.shape.dim]
        values.append(ort.OrtValue.ortvalue_from_numpy(np.full(shape, 0.5, np.float32)))
        io.bind_ortvalue_input(info.name, values[-1])
    for info in model.graph.output:
        io.bind_output(info.name)
    gc.collect()
    return counter.during(lambda: session.run_with_iobinding(io))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counter, found = MallocCounter(), []
    for number in range(args.count):
        model = Drawing(args.seed + number).model()
        onnx.save(model, os.path.join(args.folder, f"{number}.onnx"))
        found.append({settings: {order: measured(model, settings, order, counter) for order in ORDERS} for settings in SETTINGS})
    with open(os.path.join(args.folder, "measured.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
