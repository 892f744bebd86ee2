"""Says which nodes of models have no kernel of the CUDA provider for their type.

Usage: cuda_kernels.py MODEL ...

What the provider has stands in testdata/cuda_kernels.json: the types of an operator's first parameter (of Where: of what it
chooses from), for operator sets 15 and 16. Exit status 1 if a node has no kernel there and is not arithmetic on shapes: those
are a few bytes, which the runtime computes on the CPU.
"""

import collections
import json
import os
import sys

import onnx

TABLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "testdata", "cuda_kernels.json")
TYPES = {"FLOAT": "float", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "double"}
INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
COUNTS = ("Shape", "Size")
TESTS = ("Equal", "Greater", "Not")
# Of shapes, which come from the CPU.
ON_CPU = {("ReduceProd", "int64")}


def attribute(node, name):
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def written(node, types):
    """The types of a node's outputs."""
    if node.op_type in COUNTS:
        return [INT64]
    if node.op_type in TESTS:
        return [BOOL]
    if node.op_type == "Cast":
        return [attribute(node, "to")]
    if node.op_type in ("Constant", "ConstantOfShape"):
        value = attribute(node, "value")
        return [value.data_type if value is not None else onnx.TensorProto.FLOAT]
    first = types[node.input[1 if node.op_type == "Where" else 0]]
    second = {"MaxPool": INT64, "Dropout": BOOL}.get(node.op_type, first)
    return [first] + [second] * (len(node.output) - 1)


def without_kernel(model):
    """(operator, type) of the nodes without a kernel, and the name of the first of each."""
    with open(TABLE) as file:
        table = json.load(file)
    graph = model.graph
    types = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    found = collections.OrderedDict()
    for node in graph.node:
        types.update(zip(node.output, written(node, types)))
        if node.op_type == "Constant":
            continue
        read = types[node.input[1 if node.op_type == "Where" else 0]]
        name = onnx.TensorProto.DataType.Name(read)
        name = TYPES.get(name, name.lower())
        operator = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        if name not in table.get(operator, ()):
            found.setdefault((operator, name), node.name)
    return found


def main():
    failed = False
    for path in sys.argv[1:]:
        for kind, node in without_kernel(onnx.load(path, load_external_data=False)).items():
            is_small = kind in ON_CPU
            print(f"{path}: {kind[0]} of {kind[1]}, {node}{': on the CPU' if is_small else ''}")
            failed |= not is_small
    return failed


if __name__ == "__main__":
    sys.exit(main())
