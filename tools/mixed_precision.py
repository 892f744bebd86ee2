"""Makes a mixed-precision form of a training graph in float32.

Usage: mixed_precision.py MODEL OUTPUT [--operators NAME ...]

Every node of these operators (products, convolutions and activations, forward and backward, unless told otherwise)
computes in float16: casts stand in front of what it reads and behind what it writes, as autocasting does it; a
node that reads what another in float16 wrote reads it without casts.
"""

import argparse

import onnx

OPERATORS = ["Gemm", "MatMul", "Relu", "ReluGrad", "Transpose", "Sum", "Add"]
HALF, FLOAT = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def mixed(model, operators):
    """Changes the model in place."""
    graph = model.graph
    types = {info.name: info.type.tensor_type.elem_type for info in list(graph.value_info) + list(graph.input) + list(graph.output)}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    half, nodes = {}, []  # by float tensor: the same in float16
    outputs = {info.name for info in graph.output}
    infos = {info.name: info for info in list(graph.value_info) + list(graph.input)}

    def declare(name, like):
        if like in infos:
            info = graph.value_info.add()
            info.CopyFrom(infos[like])
            info.name = name
            info.type.tensor_type.elem_type = HALF

    for node in list(graph.node):
        if node.op_type not in operators or any(types.get(name, FLOAT) != FLOAT for name in node.input if name):
            nodes.append(node)
            continue
        for i, name in enumerate(node.input):
            if not name:
                continue
            if name not in half:
                half[name] = name + "/half"
                declare(half[name], name)
                nodes.append(onnx.helper.make_node("Cast", [name], [half[name]], name=f"to_half/{name}", to=HALF))
            node.input[i] = half[name]
        written = [name for name in node.output if name]
        for i, name in enumerate(node.output):
            if name:
                half[name] = name + "/half"
                declare(half[name], name)
                node.output[i] = half[name]
        nodes.append(node)
        nodes += [onnx.helper.make_node("Cast", [half[name]], [name], name=f"to_float/{name}", to=FLOAT) for name in written]
    # Casts that nobody reads go.
    read = {name for node in nodes for name in node.input} | outputs
    nodes = [node for node in nodes if node.op_type != "Cast" or node.output[0] in read]
    del graph.node[:]
    graph.node.extend(nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--operators", nargs="+", metavar="NAME", default=OPERATORS)
    args = parser.parse_args()
    model = onnx.load(args.model)
    mixed(model, args.operators)
    onnx.save(model, args.output)


if __name__ == "__main__":
    main()
