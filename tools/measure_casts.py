#!/usr/bin/env python3
"""Which operators ONNX Runtime computes in float16 on the CPU, and which between casts: writes testdata/casts.json.

    .venv/bin/python tools/measure_casts.py

Every case of testdata/operators.json and testdata/workspaces.json is loaded alone, with float16 for each float that it reads, and saved as the session
has it (ORT_DISABLE_ALL). "casts": the runtime put Cast nodes around it; "kernel": it reads float16; "pieces": other nodes stand in its place; "refused":
it is not loaded. Nothing is run. Cases without a tensor of floats are left out.
"""

import json
import os
import subprocess
import sys
import tempfile

import onnx
from onnx import helper

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "testdata")
TARGET = os.path.join(DATA, "casts.json")
INSERTED = "InsertedPrecisionFreeCast_"


def in_half(case):
    """The case with float16 in place of float; None if it reads no floats that are computed."""
    computed = [t for t in case["inputs"] if t and "values" not in t and t["type"] == "float"]
    if not computed:
        return None
    change = lambda t: t and (dict(t, type="float16") if t["type"] == "float" else t)
    return dict(case, inputs=[change(tensor) for tensor in case["inputs"]])


def model_of(case):
    import measure_operators

    node, inputs, constants, _ = measure_operators.build(case)
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "case", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case["opset"]), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    return model


def one(case):
    """What the session makes of it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = os.path.join(folder, "saved.onnx")
        try:
            ort.InferenceSession(model_of(case).SerializeToString(), options, providers=["CPUExecutionProvider"])
            saved = onnx.load(options.optimized_model_filepath)
        except Exception:  # the runtime's own exceptions have no common base
            return "refused"
    nodes = [node for node in saved.graph.node if node.op_type == case["op"]]
    if not nodes:
        return "pieces"
    casted = any(name.startswith(INSERTED) for node in nodes for name in list(node.input) + list(node.output))
    return "casts" if casted else "kernel"


def work():
    """Answers a case a line."""
    for line in sys.stdin:
        print(one(json.loads(line)), flush=True)


def answers(cases):
    """In a process of its own, and another one after each crash."""
    worker = None
    for case in cases:
        worker = worker or subprocess.Popen(
            [sys.executable, "-c", "import measure_casts; measure_casts.work()"], cwd=HERE, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ, CKPT_COUNTED="1"))
        worker.stdin.write(json.dumps(case) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline().strip()
        if not answer:
            worker = None
        yield answer or "refused"
    if worker:
        worker.stdin.close()
        worker.wait()


def main():
    cases = []
    for name in ("operators.json", "workspaces.json"):
        with open(os.path.join(DATA, name)) as file:
            content = json.load(file)
        cases += content if isinstance(content, list) else content["cases"]
    halves = [half for half in map(in_half, cases) if half]
    found = {}
    for case, answer in zip(halves, answers(halves)):
        found.setdefault((case["domain"], case["op"]), set()).add(answer)
    rows = []
    for (domain, op), said in sorted(found.items()):
        # A case that is refused says nothing where another is loaded.
        loaded = said - {"refused"}
        if len(loaded) > 1:
            print("%s: %s" % (op, sorted(loaded)))
        rows.append({"domain": domain, "op": op, "half": "/".join(sorted(loaded or said))})
    with open(TARGET, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print("%d operators, %d with kernels" % (len(rows), sum(row["half"] == "kernel" for row in rows)))


if __name__ == "__main__":
    main()
