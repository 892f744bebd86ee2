"""Changes real training graphs as careless tools do, rewrites them, and runs both: no bit may differ.

Usage: mutated_runs.py FILE[@NAME=N,...]... [--binary ckpt-opt] [--count N] [--first K] [--seed S] [--keep FOLDER]

Each file is changed --count times in up to four ways: declarations dropped or wrong, nodes in another sequence, tensors read
elsewhere, computed twice, or given to the caller, results that nobody reads, gradients added to one buffer, attributes, and other
sizes. What ONNX Runtime does not run is left out. What ckpt-opt refuses has to have a reason that does not blame itself; what it
writes is verified by itself, and has to give the same bits in both orders. Prints what became of them as JSON; exit status 1 if
anything is wrong, and --keep has the files.
"""

import argparse
import collections
import copy
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import onnx
import onnxruntime as ort

import run_step

SEED = 1


class Graph:
    """A model under change."""

    def __init__(self, model, dims, draw):
        self.model, self.graph, self.dims, self.draw = model, model.graph, dict(dims), draw
        infos = list(self.graph.value_info) + list(self.graph.input) + list(self.graph.output)
        self.infos = {info.name: info for info in infos}

    def kind(self, name):
        """Type and shape as declared, to find others like it."""
        info = self.infos.get(name)
        return info.type.SerializeToString() if info is not None and info.type.tensor_type.HasField("shape") else None

    def nodes(self):
        return [node for node in self.graph.node if node.op_type != "Constant"]

    def fresh(self, wish):
        taken = {name for node in self.graph.node for name in node.output} | set(self.infos)
        number = next(n for n in range(10**6) if f"{wish}/mutant_{n}" not in taken)
        return f"{wish}/mutant_{number}"

    def like(self, name, new):
        """Declares `new` as `name` is."""
        if name in self.infos:
            info = copy.deepcopy(self.infos[name])
            info.name = new
            self.graph.value_info.append(info)
            self.infos[new] = info

    def without_declarations(self):
        kept = [info for info in self.graph.value_info if self.draw.random() < self.part]
        del self.graph.value_info[:]
        self.graph.value_info.extend(kept)

    def drop_all_declarations(self):
        self.part = 0
        self.without_declarations()

    def drop_half_of_the_declarations(self):
        self.part = 0.5
        self.without_declarations()

    def move_nodes(self):
        nodes = list(self.graph.node)
        for _ in range(self.draw.randrange(1, 5)):
            node = nodes.pop(self.draw.randrange(len(nodes)))
            nodes.insert(self.draw.randrange(len(nodes) + 1), node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def expose(self):
        inner = [name for node in self.nodes() for name in node.output if self.kind(name)]
        given = {info.name for info in self.graph.output}
        inner = [name for name in inner if name not in given]
        if inner:
            self.graph.output.append(copy.deepcopy(self.infos[self.draw.choice(inner)]))

    def compute_twice(self):
        node = self.draw.choice(self.nodes())
        if node.op_type in ("InPlaceAccumulatorV2", "BatchNormInternal", "YieldOp"):
            return
        other = copy.deepcopy(node)
        other.name = self.fresh(node.name)
        renamed = {}
        for at, name in enumerate(node.output):
            if name:
                renamed[name] = other.output[at] = self.fresh(name)
                self.like(name, renamed[name])
        readers = [(n, at) for n in self.graph.node for at, name in enumerate(n.input) if name in renamed]
        for reader, at in readers:
            if self.draw.random() < 0.5:
                reader.input[at] = renamed[reader.input[at]]
        self.graph.node.append(other)

    def read_elsewhere(self):
        places = {name: at for at, node in enumerate(self.graph.node) for name in node.output}
        at = self.draw.randrange(len(self.graph.node))
        node = self.graph.node[at]
        if not node.input:
            return
        position = self.draw.randrange(len(node.input))
        kind = self.kind(node.input[position])
        owned = {info.name for info in self.graph.input}
        others = [name for name in self.infos if kind and self.kind(name) == kind and name not in owned
                  and places.get(name, len(self.graph.node)) < at]
        if others and node.op_type != "InPlaceAccumulatorV2":
            node.input[position] = self.draw.choice(others)

    def leave_unread(self):
        floats = [name for name, info in self.infos.items() if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
        name = self.draw.choice(floats)
        new = self.fresh(name)
        self.like(name, new)
        self.graph.node.append(onnx.helper.make_node(self.draw.choice(["Relu", "Neg", "Identity"]), [name], [new], name=new))

    def share_a_buffer(self):
        sums = [node for node in self.graph.node if node.op_type == "InPlaceAccumulatorV2"]
        if len(sums) > 1:
            one = self.draw.choice(sums)
            like = [node for node in sums if self.kind(node.input[0]) == self.kind(one.input[0])]
            one.input[0] = self.draw.choice(like).input[0]

    def pass_through(self):
        node = self.draw.choice(self.nodes())
        at = self.draw.randrange(max(1, len(node.input)))
        # The runtime lets a PassThrough forward nothing of the caller's.
        written = {name for node in self.graph.node for name in node.output}
        if len(node.input) > at and node.input[at] in written:
            new = self.fresh(node.input[at])
            self.like(node.input[at], new)
            kind = self.draw.choice([("Identity", ""), ("PassThrough", "com.microsoft")])
            self.graph.node.append(onnx.helper.make_node(kind[0], [node.input[at]], [new], name=new, domain=kind[1]))
            node.input[at] = new

    def change_an_attribute(self):
        of = [a for node in self.graph.node for a in node.attribute
              if a.name in ("epsilon", "alpha", "momentum") and a.type == onnx.AttributeProto.FLOAT]
        if of:
            self.draw.choice(of).f *= self.draw.choice([0.5, 0.75])

    def change_sizes(self):
        for name in self.dims:
            self.dims[name] = max(1, self.dims[name] + self.draw.choice([-1, 1, 2]))

    def fix_sizes(self):
        for info in self.graph.input:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param in self.dims:
                    dim.dim_value = self.dims[dim.dim_param]
        self.dims = {}

    def forget_names(self):
        for node in self.graph.node:
            if self.draw.random() < 0.3:
                node.name = ""

    def declare_wrongly(self):
        infos = [info for info in self.graph.value_info if info.type.tensor_type.shape.dim]
        if infos:
            dim = self.draw.choice(self.draw.choice(infos).type.tensor_type.shape.dim)
            dim.dim_param = "wrong"


WAYS = [
    Graph.drop_all_declarations, Graph.drop_half_of_the_declarations, Graph.move_nodes, Graph.expose, Graph.compute_twice,
    Graph.read_elsewhere, Graph.leave_unread, Graph.share_a_buffer, Graph.pass_through, Graph.change_an_attribute,
    Graph.change_sizes, Graph.fix_sizes, Graph.forget_names, Graph.declare_wrongly,
]


class Refused(Exception):
    """The runtime does not run it, and says why, or crashes."""


def digests(path, dims, like, order):
    """What a step leaves behind, from a process of its own: some graphs crash the runtime."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = {"digests": step(path, dims, like, order)}
        except (Exception, SystemExit) as error:
            told = {"refused": str(error)}
        with os.fdopen(write, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    told = json.loads(text) if text and status == 0 else {"refused": f"it ended with status {status}"}
    if "refused" in told:
        raise Refused(told["refused"])
    return told["digests"]


def step(path, dims, like, order):
    """What a step leaves behind, as run_step.py tells it."""
    sys.argv = ["run_step.py", str(path), "--seed", str(SEED), "--expose-statistics", "--order", order, "--no-arena"]
    args = run_step.arguments()
    args.dim, args.inputs_of = [f"{name}={size}" for name, size in dims.items()], str(like)
    model, arrays, outputs, _ = run_step.load_model(args.model, args)
    session = ort.InferenceSession(model, run_step.session_options(args, None), providers=["CPUExecutionProvider"])
    before = {name: run_step.digest(array) for name, array in arrays.items()}
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    io = run_step.bound_step(session, values, outputs)
    session.run_with_iobinding(io)
    results = {name: run_step.digest(value.numpy()) for name, value in zip(outputs, io.get_outputs())}
    changed = {name: run_step.digest(array) for name, array in arrays.items()}
    return results | {f"input:{name}": now for name, now in changed.items() if now != before[name]}


def bindings(text):
    return dict(run_step.binding(one) for one in text.split(",") if one)


def attempt(file, dims, args, draw, folder):
    """What became of one changed graph: a kind, and a description where that is wrong."""
    graph = Graph(onnx.load(file), dims, draw)
    ways = [draw.choice(WAYS) for _ in range(draw.randrange(1, 5))]
    for way in ways:
        way(graph)
    told = ", ".join(way.__name__ for way in ways)
    original, rewritten = folder / "original.onnx", folder / "rewritten.onnx"
    onnx.save(graph.model, original)
    rewritten.unlink(missing_ok=True)
    try:
        expected = {order: digests(original, graph.dims, original, order) for order in ("default", "priority")}
    except Refused:
        return "not run by the runtime", None
    settings = draw.choice(["lean", "default"])
    budget = draw.choice(["fixed+40%", "fixed+60%", "fixed+80%", "min", "100%"])
    command = [args.binary, original, rewritten, "--budget", budget, "--runtime-settings", settings, "--quiet"]
    for name, size in graph.dims.items():
        command += ["--dim", f"{name}={size}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    told = f"{told}; {budget}, {settings}"
    said = done.stderr.strip()
    # 1: the input is wrong; 3: nothing fits.
    if done.returncode not in (0, 1, 3) or "panicked" in said or "given up" in said or "failed verification" in said or "proved" in said:
        return "wrong", f"{told}: exit {done.returncode}: {said[:600]}"
    if done.returncode:
        if done.returncode == 3:
            return "does not fit", None
        return "refused: " + re.sub(r'"[^"]*"|\d+|/\S+', "…", said.splitlines()[0])[:120], None
    try:
        for order in ("default", "priority"):
            found = digests(rewritten, graph.dims, original, order)
            differing = [name for name in expected["default"] | found
                         if found.get(name) not in (expected["default"].get(name), expected[order].get(name))]
            if differing:
                return "wrong", f"{told}: {order}: bits differ: {sorted(differing)[:4]}"
    except Refused as error:
        return "wrong", f"{told}: the runtime refuses what was written: {str(error)[:600]}"
    return "same bits", None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="+")
    parser.add_argument("--binary", default="target/release/ckpt-opt")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the number of the first change")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    ort.set_default_logger_severity(4)
    found, wrong = collections.Counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for text in args.file:
            file, _, dims = text.partition("@")
            for number in range(args.first, args.first + args.count):
                draw = random.Random(f"{args.seed} {pathlib.Path(file).name} {number}")
                kind, what = attempt(file, bindings(dims), args, draw, folder)
                found[kind] += 1
                if what:
                    wrong.append(f"{text} {number}: {what}")
                    print(wrong[-1], file=sys.stderr)
                    if args.keep:
                        args.keep.mkdir(parents=True, exist_ok=True)
                        for path in folder.glob("*.onnx"):
                            path.rename(args.keep / f"{pathlib.Path(file).stem}-{number}-{path.name}")
    print(json.dumps({"counts": dict(sorted(found.items())), "wrong": wrong}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
