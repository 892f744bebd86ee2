"""What ONNX Runtime allocates for nodes with subgraphs: a reference for the simulation in Rust.

Usage: measure_bodies.py N DIR [--seed S]

Writes random graphs with If, Loop and Scan, 0.onnx to N-1.onnx, to DIR, and DIR/measured.json: for each, by settings and
order, the most that a step allocates beyond what was live before it, in bytes. Needs the malloc counter
preloaded. Sizes follow from the subgraphs alone; in half of the graphs value_info has those of a Loop's results as well. Some
conditions are constants. Every branch is measured, in two steps, since a subgraph's memory pattern is made from its first run; the
largest need counts.
"""

import argparse
import gc
import json
import os
import random

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from counters import MallocCounter
from planner_check import ORDERS, SETTINGS

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
ROWS, COLUMNS = 256, 128


def info(name, shape, element=FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


class Drawing:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.rows = self.random.choice(["rows", ROWS])
        self.count = 0
        self.steps = []
        # Drawn apart, so that the rest of a graph is the same with and without.
        self.apart = random.Random(f"{seed} declared")
        self.declared = []

    def name(self, wish):
        self.count += 1
        return f"{wish}{self.count}"

    def chain(self, values, weights, nodes, inner=None):
        """Random nodes on values of one shape; gives what to write the result with."""
        values = list(values)
        for _ in range(nodes):
            kind = self.random.choice(["Exp", "Relu", "Add", "MatMul", "Wide", "Identity"] + (["Inner"] if inner else []))
            x, y = self.random.choice(values[-3:]), self.random.choice(values)
            out = self.name("v")
            if kind in ("Exp", "Relu", "Identity"):
                yield helper.make_node(kind, [x], [out])
            elif kind == "Add":
                yield helper.make_node("Add", [x, y], [out])
            elif kind == "MatMul":
                yield helper.make_node("MatMul", [x, self.random.choice(weights)], [out])
            elif kind == "Wide":
                wide, less = self.name("w"), self.name("m")
                yield helper.make_node("Concat", [x, y, x], [wide], axis=1)
                yield helper.make_node("Softmax", [wide], [less], axis=-1)
                yield helper.make_node("Slice", [less, "from", "to", "columns"], [out])
            else:
                yield from inner(x, out)
            values.append(out)
        self.last = values[-1]

    def body(self, inputs, values, results, nodes, inner=None, weight=True):
        weights, initializers = ["outer_weight"], []
        if weight:
            name = self.name("weight")
            initializers.append(numpy_helper.from_array(np.full((COLUMNS, COLUMNS), 0.01, np.float32), name))
            weights.append(name)
        made, outputs = [], []
        for result in results:
            made += list(self.chain(values, weights, self.random.randint(*nodes), inner))
            outputs.append(self.name("r"))
            made.append(helper.make_node(result, [self.last], [outputs[-1]]))
        return made, inputs, outputs, initializers

    def graph(self, body, before=(), first_outputs=()):
        made, inputs, outputs, initializers = body
        return helper.make_graph(list(before) + made, "body", inputs, list(first_outputs) + [info(o, None) for o in outputs], initializers)

    def branches(self, values):
        def inner(x, out):
            one = self.graph(self.body([], [x], ["Exp"], (1, 3)))
            other = self.graph(self.body([], [x] + values[:1], ["Tanh"], (0, 2)))
            yield helper.make_node("If", ["flag"], [out], then_branch=one, else_branch=other)

        one = self.graph(self.body([], values, ["Exp"], (1, 6), inner))
        other = self.graph(self.body([], values, ["Identity"], (0, 3)))
        yield helper.make_node("If", ["flag"], ["result"], then_branch=one, else_branch=other)

    def loop(self, values):
        carried, added = self.random.randint(0, 2), self.random.randint(0, 1)
        if carried + added == 0:
            carried = 1
        inputs = [self.name("s") for _ in range(carried)]
        body = self.body(
            [info(self.name("i"), [], INT64), info("going", [], BOOL)] + [info(name, None) for name in inputs],
            inputs + values[:1], ["Tanh"] * (carried + added), (1, 4))
        graph = self.graph(body, [helper.make_node("Identity", ["going"], ["go_on"])], [info("go_on", [], BOOL)])
        outputs = [f"result{k}" for k in range(carried + added)]
        yield helper.make_node("Loop", ["trips", ""] + [self.random.choice(values) for _ in inputs], outputs, body=graph)
        if self.apart.random() < 0.5:
            self.declared += [info(output, [self.rows, COLUMNS]) for output in outputs[:carried]]
        for place, output in enumerate(outputs):
            yield helper.make_node("ReduceMax", [output], [f"max{place}"], keepdims=0)
        yield helper.make_node("Max", [f"max{k}" for k in range(len(outputs))], ["most"])
        yield helper.make_node("Add", [values[0], "most"], ["result"])

    def scan(self, values):
        carried = self.random.randint(0, 2)
        states = [self.name("s") for _ in range(carried)]
        element = self.name("e")
        shape = [self.rows, COLUMNS]
        body = self.body([info(name, shape) for name in states + [element]], states + [element], ["Tanh"] * (carried + 1), (1, 4))
        axis, result_axis = self.random.choice([0, 0, 1]), self.random.choice([0, 0, 1])
        stacked, slices = "stacked", self.random.randint(1, 4)
        parts = []
        for k in range(slices):
            parts.append(self.name("p"))
            yield helper.make_node("Unsqueeze", [values[k % len(values)], "second" if axis else "first"], [parts[-1]])
        yield helper.make_node("Concat", parts, [stacked], axis=axis)
        outputs = [f"final{k}" for k in range(carried)] + ["scanned"]
        yield helper.make_node("Scan", [self.random.choice(values) for _ in states] + [stacked], outputs, body=self.graph(body),
                               num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[result_axis],
                               scan_output_directions=[self.random.randint(0, 1)])
        for place, output in enumerate(outputs):
            yield helper.make_node("ReduceMax", [output], [f"max{place}"], keepdims=0)
        yield helper.make_node("Max", [f"max{k}" for k in range(len(outputs))], ["most"])
        yield helper.make_node("Add", [values[0], "most"], ["result"])

    def model(self, kind):
        nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Tanh", ["a"], ["b"])]
        nodes += list(kind(["a", "b"]))
        nodes += [helper.make_node("Exp", ["result"], ["last"]), helper.make_node("ReduceSum", ["last"], ["y"], keepdims=0)]
        constants = {
            "outer_weight": np.full((COLUMNS, COLUMNS), 0.01, np.float32), "from": np.array([0]), "to": np.array([COLUMNS]),
            "columns": np.array([1]), "first": np.array([0]), "second": np.array([1]),
            "trips": np.array(self.random.randint(1, 4), np.int64),
        }
        inputs = [info("x", [self.rows, COLUMNS]), info("flag", [], BOOL)]
        if self.apart.random() < 0.4:
            constants["flag"] = np.array(self.apart.random() < 0.5)
            inputs.pop()
        graph = helper.make_graph(nodes, "g", inputs, [info("y", [])],
                                  [numpy_helper.from_array(value, name) for name, value in constants.items()], value_info=self.declared)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measured(model, settings, order, counter):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.execution_order = ORDERS[order]
    options.enable_mem_reuse, options.enable_mem_pattern = SETTINGS[settings]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = ort.OrtValue.ortvalue_from_numpy(np.full((ROWS, COLUMNS), 0.01, np.float32))
    peaks = []
    for flag in (False, True, False, True):
        io = session.io_binding()
        io.bind_ortvalue_input("x", x)
        if len(model.graph.input) > 1:
            io.bind_ortvalue_input("flag", ort.OrtValue.ortvalue_from_numpy(np.array(flag)))
        io.bind_output("y")
        gc.collect()
        peaks.append(counter.during(lambda: session.run_with_iobinding(io)))
    return max(peaks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counter, found = MallocCounter(), []
    for number in range(args.count):
        drawing = Drawing(args.seed + number)
        kind = [drawing.branches, drawing.loop, drawing.scan][number % 3]
        model = drawing.model(kind)
        onnx.checker.check_model(model)
        onnx.save(model, os.path.join(args.folder, f"{number}.onnx"))
        found.append({settings: {order: measured(model, settings, order, counter) for order in ORDERS} for settings in SETTINGS})
    with open(os.path.join(args.folder, "measured.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
