"""Runs graphs with a YieldOp, as ORTModule's are, in their two halves.

Usage: yield_step.py --random N DIR      writes random graphs, I.onnx, and what the runtime ran of each in every
                                         execution order, I.default, I.priority and I.memory-efficient
       yield_step.py --executed DIR GRAPH --dim NAME=N...
                                         writes the profile of one step in every order, default.json and so on, for
                                         ckpt-opt inspect --profile
       yield_step.py ORIGINAL REWRITTEN --dim NAME=N... [--level enable_all]
                                         compares what both hand over and return, in every order, and prints JSON:
                                         the results that differ, the largest difference, and the peaks beyond what is
                                         fed if the malloc counter is preloaded

What PyTorch would compute between the halves is made up: the gradients of what the forward half hands over. PyTorch's
own operators (ATen) run if torch and ORTModule's extension for them are installed; otherwise those for embeddings are
replaced by ONNX Runtime's, and others cannot run. One thread; lean settings, as ORTModule's are; DISABLE_ALL unless told
otherwise.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state as runtime

from counters import MallocCounter
from model_inputs import Inputs
from run_step import binding, seed_random_nodes

try:
    import torch  # noqa: F401, the extension needs it
    from onnxruntime.training.ortmodule.torch_cpp_extensions import aten_op_executor

    runtime.register_aten_op_executor(
        str(aten_op_executor.is_tensor_argument_address()), str(aten_op_executor.execute_aten_operator_address()))
    torch.set_num_threads(1)
    HAS_ATEN = True
except ImportError:
    HAS_ATEN = False

ORDERS = {
    "default": ort.ExecutionOrder.DEFAULT,
    "priority": ort.ExecutionOrder.PRIORITY_BASED,
    "memory-efficient": ort.ExecutionOrder.MEMORY_EFFICIENT,
}
LEVELS = {
    "disable_all": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "enable_all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Halves:
    """A session of a graph with a YieldOp."""

    def __init__(self, model, order, profile=None, level="disable_all"):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = LEVELS[level]
        options.enable_mem_reuse = options.enable_mem_pattern = options.enable_cpu_mem_arena = False
        options.execution_order = ORDERS[order]
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        self.device = runtime.OrtDevice(runtime.OrtDevice.cpu(), runtime.OrtDevice.default_memory(), 0)
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        known = {tensor.name for tensor in model.graph.initializer}
        self.feeds = [info.name for info in model.graph.input if info.name not in known]
        self.outputs = [info.name for info in model.graph.output]
        handed = next(node for node in model.graph.node if node.op_type == "YieldOp").input
        self.agent = runtime.TrainingAgent(
            self.session._sess, self.feeds, [self.device] * len(handed), self.outputs,
            [self.device] * len(self.outputs), 0)

    def values(self, arrays):
        values = runtime.OrtValueVector()
        for array in arrays:
            values.push_back(runtime.OrtValue.ortvalue_from_numpy(array, self.device))
        return values

    def step(self, feeds):
        """What the forward half hands over, what the backward half returns, and the peak beyond what is fed; `feeds` by
        name."""
        fed = self.values([feeds[name] for name in self.feeds])
        state, handed, returned = runtime.PartialGraphExecutionState(), runtime.OrtValueVector(), runtime.OrtValueVector()
        counter = MallocCounter()

        def run():
            self.agent.run_forward(fed, handed, state, None)
            gradients = [np.full_like(value.numpy(), 0.5) for value in handed]
            self.agent.run_backward(self.values(gradients), returned, state)

        peak = counter.during(run)
        return [value.numpy() for value in handed], [value.numpy() for value in returned], peak


def executed(profile):
    with open(profile) as file:
        events = json.load(file)
    ends = "_kernel_time"
    return [event["name"][: -len(ends)] for event in events
            if event.get("cat") == "Node" and event["name"].endswith(ends)]


def random_graph(seed):
    """Some nodes for the forward part, a YieldOp, and others, of which not all depend on it."""
    draw = random.Random(seed)
    nodes, forwarded = [], set()

    def add(pool):
        operator = draw.choice(["Exp", "Sin", "Add", "Mul", "Mul", "Shape", "PassThrough"])
        reads = draw.choices(pool, k=1 if operator in ("Exp", "Sin", "Shape") else 2)
        first = sum(len(node.output) for node in nodes)
        writes = [f"t{first + place:04}" for place in range(2 if operator == "PassThrough" else 1)]
        domain = "com.microsoft" if operator == "PassThrough" else ""
        nodes.append(helper.make_node(operator, reads, writes, name=f"{operator}_{len(nodes)}", domain=domain))
        if operator == "PassThrough":
            forwarded.update(writes)
        if operator != "Shape":
            pool += writes

    pool = ["x", "w"]
    for _ in range(draw.randrange(3, 14)):
        add(pool)
    # What a PassThrough forwards cannot be handed over.
    choice = [name for name in pool[2:] if name not in forwarded]
    handed = draw.sample(choice, min(len(choice), draw.randrange(1, 3)))
    if not handed:
        return random_graph(seed + 1_000_003)
    gradients = [f"d{place}" for place in range(len(handed))]
    nodes.append(helper.make_node("YieldOp", handed, gradients, name="yield", domain="com.microsoft",
                                  full_shape_outputs=list(range(len(handed)))))
    for _ in range(draw.randrange(4, 18)):
        if draw.random() < 0.5:
            add(pool)
        else:
            mixed = gradients * 2 + pool
            known = len(mixed)
            add(mixed)
            gradients += mixed[known:]
    read = {name for node in nodes for name in node.input}
    # The backward half can only return what does not run in the forward half.
    late = set(gradients[: len(handed)])
    for node in nodes:
        if late.intersection(node.input):
            late.update(node.output)
    outputs = [node.output[0] for node in nodes if node.op_type in ("Exp", "Sin", "Add", "Mul")
               and node.output[0] in late and node.output[0] not in read]
    if not outputs:
        return random_graph(seed + 1_000_003)

    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])

    graph = helper.make_graph(nodes, "random", [info("x"), info("w")], [info(name) for name in outputs])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write_random(count, folder):
    ones = np.ones(4, np.float32)
    for number in range(count):
        model = random_graph(number)
        onnx.save(model, os.path.join(folder, f"{number}.onnx"))
        for order in ORDERS:
            with tempfile.TemporaryDirectory() as scratch:
                halves = Halves(model, order, os.path.join(scratch, "p"))
                halves.step({"x": ones, "w": ones})
                ran = executed(halves.session.end_profiling())
            with open(os.path.join(folder, f"{number}.{order}"), "w") as file:
                file.write("\n".join(ran))


def load(path):
    """The model, without operators of PyTorch's that are not there."""
    model = onnx.load(path)
    shapes = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
              for info in list(model.graph.output) + list(model.graph.value_info)}
    for node in model.graph.node:
        if node.op_type != "ATen" or HAS_ATEN:
            continue
        operator = next(attribute.s.decode() for attribute in node.attribute if attribute.name == "operator")
        if operator == "embedding":
            node.op_type, node.domain, inputs = "Gather", "", node.input[:2]
        elif operator == "embedding_backward":
            name = node.output[0] + "/shape"
            shape = np.array(shapes[node.output[0]], np.int64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(shape, name))
            node.op_type, node.domain, inputs = "GatherGrad", "com.microsoft", [name, node.input[1], node.input[0]]
        else:
            raise SystemExit(f"{node.name} is PyTorch's {operator}, which is not there")
        marks = [attribute for attribute in node.attribute if attribute.name.startswith("__")]
        node.ClearField("attribute")
        node.attribute.extend(marks)
        node.input[:] = inputs
    return model


def feeds_of(model, dims):
    return Inputs(model, dict(binding(dim) for dim in dims)).make()


def write_executed(folder, path, dims):
    model = load(path)
    feeds = feeds_of(model, dims)
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as scratch:
            halves = Halves(model, order, os.path.join(scratch, "p"))
            halves.step(feeds)
            shutil.copyfile(halves.session.end_profiling(), os.path.join(folder, f"{order}.json"))


def compare(original, rewritten, args):
    result, expected, feeds = {"differing": [], "largest_difference": 0.0, "peaks": {}}, None, None
    for path in (original, rewritten):
        model = load(path)
        feeds = feeds or feeds_of(model, args.dim)
        seed_random_nodes(model, 1)
        for order in ORDERS:
            # What a step updates in place is fed afresh.
            fresh = {name: array.copy() for name, array in feeds.items()}
            halves = Halves(model, order, None, args.level)
            handed, returned, peak = halves.step(fresh)
            result["peaks"].setdefault(os.path.basename(path), {})[order] = peak
            names = [f"handed over {place}" for place in range(len(handed))] + halves.outputs
            values = dict(zip(names, handed + returned))
            values.update((f"input {name}", array) for name, array in fresh.items() if not same(array, feeds[name]))
            expected = expected or values
            for name in expected.keys() | values.keys():
                if name not in values or name not in expected or not same(values[name], expected[name]):
                    result["differing"].append(f"{os.path.basename(path)}, {order}: {name}")
                if name in values and name in expected:
                    result["largest_difference"] = max(result["largest_difference"],
                                                       difference(values[name], expected[name]))
            del halves
    result["results"] = len(expected)
    json.dump(result, sys.stdout)
    print()
    return not result["differing"]


def same(one, other):
    return one.tobytes() == other.tobytes()


def difference(one, other):
    """The largest difference, relative to the largest value."""
    if one.dtype.kind != "f":
        return 0.0
    return float(np.abs(one - other).max(initial=0) / max(np.abs(other).max(initial=0), 1e-30))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--executed", metavar="DIR")
    parser.add_argument("--level", choices=sorted(LEVELS), default="disable_all")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("paths", nargs="+")
    args = parser.parse_args()
    if args.random:
        write_random(args.random, args.paths[0])
    elif args.executed:
        write_executed(args.executed, args.paths[0], args.dim)
    elif not compare(args.paths[0], args.paths[1], args):
        sys.exit(1)


if __name__ == "__main__":
    main()
