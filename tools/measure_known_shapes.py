#!/usr/bin/env python3
"""What ONNX Runtime knows of the shapes of single operators' results before anything runs: writes
testdata/known_shapes.json, a line for each case of testdata/operators.json and testdata/workspaces.json.

    .venv/bin/python tools/measure_known_shapes.py          all of them
    .venv/bin/python tools/measure_known_shapes.py MODEL... prints, by tensor, the same of what nodes write, a line for a graph
    .venv/bin/python tools/measure_known_shapes.py --optimized MODEL...
                                                            prints what of that has known sizes at ORT_ENABLE_BASIC, a line for a graph

Each operator is alone in a graph whose outputs are declared without shapes; recorded is what a session then says of
them: a number, a name or null for each dimension, and null for a shape of which nothing is known. "numbers" is for
inputs of known sizes, "names" for inputs whose sizes above two are names, equal sizes of one name; not in weights and what they are multiplied
with. "alone" is by input: what is known where every dimension of this one has a name of its own and the others are numbers. Scalars and unknown shapes look the same, so results that are scalars are left out (false).
"""

import json
import os
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")


def known(case, named, alone=None):
    """By output: what a session knows of it, with names in all inputs or in that one alone. None if it refuses the graph."""
    names, inputs, constants = [], [], []
    for position, tensor in enumerate(case["inputs"]):
        names.append("" if tensor is None else "in%d" % position)
        if tensor is None:
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype({"float": "float32"}.get(tensor["type"], tensor["type"])))
        if "values" in tensor:
            values = np.array(tensor["values"], helper.tensor_dtype_to_np_dtype(kind)).reshape(tensor["shape"])
            constants.append(numpy_helper.from_array(values, names[-1]))
            continue
        recurrent = case["op"].startswith(("RNN", "GRU", "LSTM"))
        is_weight = position > 0 and (recurrent or case["op"].startswith(("Conv", "FusedConv")))
        last = 0 if is_weight or not named else 2 if recurrent else len(tensor["shape"])
        shape = ["d%d" % size if size > 2 and axis < last else size for axis, size in enumerate(tensor["shape"])]
        if position == alone:
            shape = ["n%d" % axis for axis in range(len(shape))]
        inputs.append(helper.make_tensor_value_info(names[-1], kind, shape))
    outputs = ["" if output is None else "out%d" % i for i, output in enumerate(case["outputs"])]
    node = helper.make_node(case["op"], names, outputs, domain=case["domain"], **case["attributes"])
    returned = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "case", inputs, returned, constants)
    imports = [helper.make_opsetid("", case["opset"]), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    try:
        shapes = shapes_of_outputs(model)
    except Exception:  # the runtime's own exceptions have no common base
        return None
    result = [shapes.get(name) for name in outputs]
    return [False if output and not output["shape"] else shape for output, shape in zip(case["outputs"], result)]


def shapes_of_outputs(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {output.name: output.shape or None for output in session.get_outputs()}


def of_model(path):
    """By tensor that a node writes: what a session knows of its shape, with what the file declares."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    for tensor in [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]:
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        graph.initializer.remove(tensor)
    declared = {info.name: info for info in graph.value_info}
    returned = {info.name for info in graph.output}
    written = [name for node in graph.node if node.op_type != "Constant" for name in node.output if name]
    graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in written if name not in returned)
    shapes = shapes_of_outputs(model)
    return {name: shapes[name] for name in written}


def of_optimized(path):
    """The tensors that nodes write of whose shapes a session at ORT_ENABLE_BASIC knows every size: a Shape of such a one is folded."""
    model = onnx.load(path)
    graph = model.graph
    written = [name for node in graph.node if node.op_type != "Constant" for name in node.output if name]
    for name in written:
        graph.node.append(helper.make_node("Shape", [name], [name + "/of"]))
        graph.node.append(helper.make_node("Neg", [name + "/of"], [name + "/sizes"]))
        graph.output.append(helper.make_tensor_value_info(name + "/sizes", onnx.TensorProto.INT64, None))
    with tempfile.TemporaryDirectory() as folder:
        changed, saved = (os.path.join(folder, name) for name in ("changed.onnx", "saved.onnx"))
        onnx.save(model, changed, save_as_external_data=True, size_threshold=1 << 20, location="changed.bin")
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = saved
        ort.InferenceSession(changed, options, providers=["CPUExecutionProvider"])
        constants = {tensor.name for tensor in onnx.load(saved, load_external_data=False).graph.initializer}
    return [name for name in written if name + "/sizes" in constants]


def of_case(case):
    fed = [tensor is not None and "values" not in tensor for tensor in case["inputs"]]
    alone = [known(case, False, position) if fed else None for position, fed in enumerate(fed)]
    return {"op": case["op"], "numbers": known(case, False), "names": known(case, True), "alone": alone}


def main():
    if len(sys.argv) > 1:
        optimized = sys.argv[1] == "--optimized"
        for path in sys.argv[1 + optimized:]:
            print(json.dumps(of_optimized(path) if optimized else of_model(path)))
        return
    with open(os.path.join(FOLDER, "operators.json")) as file:
        cases = json.load(file)
    with open(os.path.join(FOLDER, "workspaces.json")) as file:
        cases += json.load(file)["cases"]
    results = [of_case(case) for case in cases]
    refused = [result["op"] for result in results if result["numbers"] is None]
    with open(os.path.join(FOLDER, "known_shapes.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")
    print("%d cases; refused: %s" % (len(results), " ".join(refused) or "none"))


if __name__ == "__main__":
    main()
