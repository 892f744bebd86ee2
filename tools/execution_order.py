"""The orders in which ONNX Runtime 1.19.2 runs a graph's nodes: a reference for the simulation in Rust.

Usage: execution_order.py MODEL [--order default|priority]   prints the simulated order, a name a line
       execution_order.py MODEL --check [--dim NAME=N]...     compares both orders with real steps
       execution_order.py MODEL --optimized [--order priority] [--dim NAME=N]...
                                                              prints what runs at ENABLE_ALL: a node's operator and
                                                              what it writes a line; in PRIORITY_BASED order by a step
       execution_order.py --random N [--seed S]               the same on N random graphs
       execution_order.py --random N --write DIR              and writes each graph, I.onnx, and what
                                                              the runtime ran, I.default and I.priority;
                                                              with --standard, for builds without training

A node's index is its position in the file. Constant nodes become initializers before anything else
and take no part. The rules are those of the runtime's GraphViewer:

DEFAULT: depth-first from the leaves, backwards. A stack holds all nodes without readers in ascending
index order; a node taken from it is emitted once everything it reads from was, and those producers
are pushed in ascending index order, so the last leaf and the producer with the highest index come
first. Then, in builds with training alone, every Shape and Size (of any domain) whose input is computed moves directly
behind its producer: see `move_shapes`.

PRIORITY_BASED: Kahn's algorithm; of the ready nodes, Shape and Size first, then the lowest index.

Attributes play no part, markers such as `__recompute` and `__backwardpass` included. Both orders hold
at DISABLE_ALL; from BASIC on, the runtime's own fusions give nodes new indices.
"""

import argparse
import heapq
import json
import os
import random
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort

import measure
from model_inputs import Inputs


class Edges:
    """Who reads from whom, by node index. Captures of subgraphs count as inputs, after the explicit ones."""

    def __init__(self, graph):
        self.nodes = {i: node for i, node in enumerate(graph.node) if node.op_type != "Constant"}
        producer = {name: i for i, node in self.nodes.items() for name in node.output if name}
        self.inputs = {}
        self.outputs = {i: set() for i in self.nodes}
        for i, node in self.nodes.items():
            names = list(node.input) + [name for name in captures(node) if name not in node.input]
            self.inputs[i] = [producer[name] for name in names if name in producer]
            for j in self.inputs[i]:
                self.outputs[j].add(i)

    def is_shape(self, i):
        return self.nodes[i].op_type in ("Shape", "Size")


def captures(node):
    """What the subgraphs of a node read from outside, in order of appearance."""
    found = []
    for attribute in node.attribute:
        for graph in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
            inside = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
            inside.update(name for inner in graph.node for name in inner.output)
            reads = [name for inner in graph.node for name in list(inner.input) + captures(inner)]
            reads += [info.name for info in graph.output]
            found += [name for name in reads if name and name not in inside and name not in found]
    return found


def default_order(graph, training=True):
    edges = Edges(graph)
    stack = [(i, False) for i in sorted(edges.nodes) if not edges.outputs[i]]
    visited, order = set(), []
    while stack:
        i, leaving = stack.pop()
        if leaving:
            order.append(i)
            continue
        if i in visited:
            continue
        visited.add(i)
        stack.append((i, True))
        stack += [(j, False) for j in sorted(set(edges.inputs[i])) if j not in visited]
    return move_shapes(edges, order) if training else order


def move_shapes(edges, order):
    """Behind each node, the Shape and Size nodes that read from it, in index order. One that moved
    does not pull its own readers along: they follow where they stood."""
    followers = {}
    for i in sorted(edges.nodes):
        if edges.is_shape(i) and edges.inputs[i]:
            followers.setdefault(edges.inputs[i][0], []).append(i)
    moved, result = set(), []
    for i in order:
        if i not in moved:
            result.append(i)
            for follower in followers.get(i, []):
                moved.add(follower)
                result.append(follower)
    return result


def priority_order(graph, training=True):
    edges = Edges(graph)
    keys = {i: (not edges.is_shape(i), i) for i, node in edges.nodes.items()}
    missing = {i: len(set(edges.inputs[i])) for i in edges.nodes}
    ready = [keys[i] for i, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)[-1]
        order.append(i)
        for j in edges.outputs[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, keys[j])
    return order


ORDERS = {"default": default_order, "priority": priority_order}


def random_graph(seed, standard=False):
    """A small valid graph that provokes every rule: Shape and Size in chains and in crowds, several
    leaves, repeated inputs, several outputs, captures, constants, marked nodes. Every float
    tensor has shape [4]; integers are the shapes ([1]) and sizes ([]) of something. With `standard`, every operator is one."""
    draw = random.Random(seed)
    helper = onnx.helper
    floats, shapes, sizes, nodes = ["x", "y"], [], [], []

    def emit(operator, inputs, outputs=1, **attributes):
        names = [f"t{len(nodes)}_{k}" for k in range(outputs)]
        if draw.random() < 0.2 and operator != "Constant":
            attributes[draw.choice(["__recompute", "__backwardpass"])] = 1
        nodes.append(helper.make_node(operator, inputs, names, name=f"n{len(nodes)}", **attributes))
        return names

    def recent(pool):
        return draw.choice(pool[-6:] if draw.random() < 0.7 else pool)

    for _ in range(draw.randint(5, 60)):
        kind = draw.random()
        if kind < 0.15:
            shapes += emit("Shape", [recent(floats + shapes)])
        elif kind < 0.2:
            sizes += emit("Size", [recent(floats + shapes)])
        elif kind < 0.27 and shapes:
            shapes += emit("Identity", [recent(shapes)])
        elif kind < 0.4 and shapes + sizes:
            cast = emit("Cast", [recent(shapes + sizes)], to=onnx.TensorProto.FLOAT)
            floats += emit("Sum", [recent(floats)] + cast)
        elif kind < 0.5:
            read = [recent(floats), recent(floats)]
            floats += emit("Max", read) if standard else emit("PassThrough", read, 2, domain="com.microsoft")
        elif kind < 0.55:
            value = helper.make_tensor("value", onnx.TensorProto.FLOAT, [4], [1, 2, 3, 4])
            floats += emit("Constant", [], value=value)
        elif kind < 0.6:
            value = helper.make_node("Add", [recent(floats), recent(floats)], ["v"])
            branches = {
                f"{name}_branch": helper.make_graph([value], name, [], [helper.make_empty_tensor_value_info("v")])
                for name in ("then", "else")
            }
            for branch in branches.values():
                branch.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            floats += emit("If", ["condition"], **branches)
        elif kind < 0.75:
            floats += emit("Relu", [recent(floats)])
        else:
            floats += emit("Sum", [recent(floats) for _ in range(draw.randint(1, 4))])
    read = {name for node in nodes for name in list(node.input) + captures(node)}
    # The runtime refuses a PassThrough whose output is a graph output.
    made = [name for node in nodes if node.op_type not in ("Constant", "PassThrough") for name in node.output]
    ends = [name for name in made if (name not in read and draw.random() < 0.7) or draw.random() < 0.05] or made[-1:]
    outputs = []
    for name in ends:
        integer = name in shapes + sizes
        outputs.append(helper.make_empty_tensor_value_info(name))
        outputs[-1].type.tensor_type.elem_type = onnx.TensorProto.INT64 if integer else onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    inputs.append(helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, f"random{seed}", inputs, outputs)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(path, dims, label):
    """True if the runtime runs `path` as simulated, in both orders."""
    graph = onnx.load(path, load_external_data=False).graph
    same = True
    for order, simulate in ORDERS.items():
        step = measure.step(path, dims, order=order, profile=True)
        ran = [run["index"] for run in step["executed"]]
        expected = simulate(graph)
        if ran != expected:
            same = False
            at = next((i for i, (a, b) in enumerate(zip(ran, expected)) if a != b), min(len(ran), len(expected)))
            print(f"{label}, {order}: step {at}: ran {ran[at:at + 3]}, simulated {expected[at:at + 3]}")
    return same


def executed_random(model, order):
    """The names of the main graph's nodes in the order in which this process's runtime ran them.
    Nodes of subgraphs have no name."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.execution_order = {
        "default": ort.ExecutionOrder.DEFAULT,
        "priority": ort.ExecutionOrder.PRIORITY_BASED,
    }[order]
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "p")
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ones = np.ones(4, np.float32)
        session.run(None, {"x": ones, "y": ones, "condition": np.array(True)})
        with open(session.end_profiling()) as file:
            events = json.load(file)
    suffix = "_kernel_time"
    names = [event["name"][: -len(suffix)] for event in events
             if event.get("cat") == "Node" and event["name"].endswith(suffix)]
    return [name for name in names if name.startswith("n")]


def check_random(count, seed, folder=None, standard=False):
    differing = 0
    for number in range(seed, seed + count):
        model = random_graph(number, standard)
        if folder:
            onnx.save(model, os.path.join(folder, f"{number}.onnx"))
        for order, simulate in ORDERS.items():
            expected = [model.graph.node[i].name for i in simulate(model.graph, not standard)]
            executed = executed_random(model, order)
            if folder:
                with open(os.path.join(folder, f"{number}.{order}"), "w") as file:
                    file.write("\n".join(executed))
            if executed != expected:
                differing += 1
                print(f"random graph {number}, {order}: differs")
    print(f"{count} random graphs in {len(ORDERS)} orders: {differing} differ")
    return differing == 0


def optimized(path, disabled, order, dims):
    """The nodes that the runtime has after all its optimizations. Where it changes anything it writes a file in DEFAULT order; else, and in
    another order, a step tells."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        if disabled:
            options.add_session_config_entry("optimization.disable_specified_optimizers", disabled)
        if order == "priority":
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "p")
        # It warns that what it writes fits this machine alone.
        options.log_severity_level = 3
        model = onnx.load(path, load_external_data=False)
        for number, node in enumerate(model.graph.node):
            # Names may be missing, or there twice.
            node.name = f"{number}"
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
        nodes = [node for node in graph.node if node.op_type != "Constant"]
        before = [list(node.output) for node in model.graph.node if node.op_type != "Constant"]
        if order == "default" and before != [list(node.output) for node in nodes]:
            return nodes
        named = {node.name: node for node in nodes}
        bound = dict(dim.split("=") for dim in dims)
        session.run(None, Inputs(model, {name: int(size) for name, size in bound.items()}).make())
        with open(session.end_profiling()) as file:
            events = json.load(file)
    suffix = "_kernel_time"
    ran = [event["name"][: -len(suffix)] for event in events
           if event.get("cat") == "Node" and event["name"].endswith(suffix)]
    return [named[name] for name in ran if name in named]


def written_rows(path, nodes):
    """Each node's operator and what it writes. A Split that the runtime puts in place of Gathers writes what they wrote: the Squeezes
    that take the axis from its rows are left out."""
    named = {name: node.op_type for node in onnx.load(path, load_external_data=False).graph.node for name in node.output}
    # Splits behind which a Transpose is moved have new results, too, which Squeezes of the file read.
    squeezes = [node for node in nodes if node.op_type == "Squeeze" and named.get(node.output[0]) == "Gather"]
    squeezed = {node.input[0]: node.output[0] for node in squeezes if node.input[0] not in named}
    rows = {name for node in nodes if node.op_type == "Split" for name in node.output} & set(squeezed)
    for node in nodes:
        if node.op_type != "Squeeze" or node.input[0] not in rows:
            yield node.op_type, [squeezed.get(name, name) if name in rows else name for name in node.output if name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--order", choices=sorted(ORDERS), default="default")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("--disable-optimizers", metavar="NAME;NAME", help="optimizers of the runtime that are switched off")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", metavar="DIR")
    parser.add_argument("--standard", action="store_true", help="random graphs of standard operators only")
    args = parser.parse_args()
    if args.random is not None:
        return 0 if check_random(args.random, args.seed, args.write, args.standard) else 1
    if args.model is None:
        parser.error("name a model or --random N")
    if args.check:
        same = check(args.model, args.dim, os.path.basename(args.model))
        print(f"{args.model}: {'as simulated' if same else 'DIFFERS'}")
        return 0 if same else 1
    if args.optimized:
        for operator, written in written_rows(args.model, optimized(args.model, args.disable_optimizers, args.order, args.dim)):
            print(operator, *written)
        return 0
    graph = onnx.load(args.model, load_external_data=False).graph
    for i in ORDERS[args.order](graph):
        print(graph.node[i].name or f"{graph.node[i].op_type}#{i}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
