"""Random nodes that variants replace, and a comparison of both forms in ONNX Runtime.

variants.py write DIR N      writes DIR/<number>.onnx
variants.py write-inexact DIR N
                             the same for variants that are not bitwise
variants.py compare DIR      runs each DIR/<number>.onnx and every DIR/<number>.<variant>.onnx on the
                             same inputs, and prints as JSON how many pairs had equal bits, by
                             variant, and which had not; approximations count as equal within the bounds
                             that passes/src/operators/variants/approximate.rs states
"""

import collections
import json
import pathlib
import random
import sys

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def model(nodes, inputs, outputs, values=()):
    """Each of the lists has (name, type, shape)."""
    info = lambda triple: helper.make_tensor_value_info(*triple)
    graph = helper.make_graph(
        nodes,
        "variants",
        [info(t) for t in inputs],
        [info(t) for t in outputs],
        value_info=[info(t) for t in values],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def running_sum(r):
    shape = [r.randint(64, 96), r.randint(64, 96)]
    element = r.choice([FLOAT, FLOAT, DOUBLE])
    names = ["x%d" % i for i in range(r.choice([3, 4, 5, 8, 9, 17, 64]))]
    node = helper.make_node("Sum", names, ["y"], name="node")
    return model([node], [(n, element, shape) for n in names], [("y", element, shape)])


def convolution_gradient(r, batch=None, written=None):
    axes = r.choice([1, 2, 2, 2, 3])
    group = r.choice([1, 1, 2, 3])
    depthwise = r.random() < 0.2
    channels = group * (1 if depthwise else r.randint(1, 5))
    filters = group * r.randint(1, 5)
    pointwise = r.random() < 0.2
    each = lambda low, high: [r.randint(low, high) for _ in range(axes)]
    kernel = [1] * axes if pointwise else each(1, 4)
    strides, dilations = each(1, 3), each(1, 2)
    begin = [r.randint(0, k) for k in kernel]
    end = [r.randint(0, k) for k in kernel]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    size = [e + r.randint(0, 9) for e in extent]
    count = [
        (s + b + e - x) // t + 1 for s, b, e, x, t in zip(size, begin, end, extent, strides)
    ]
    batch = batch or r.randint(1, 3)
    x = [batch, channels] + size
    w = [filters, channels // group] + kernel
    dy = [batch, filters] + count
    written = written or r.choice([["dx", "dw", "db"], ["dx", "dw"], ["dx"], ["dx", "", "db"]])
    attributes = {"dilations": dilations, "pads": begin + end, "strides": strides}
    # What is not given has its default.
    if strides == [1] * axes and r.random() < 0.5:
        del attributes["strides"]
    if dilations == [1] * axes and r.random() < 0.5:
        del attributes["dilations"]
    if group > 1 or r.random() < 0.5:
        attributes["group"] = group
    if r.random() < 0.5:
        attributes["kernel_shape"] = kernel
    node = helper.make_node(
        "ConvGrad", ["dy", "x", "w"], written, name="node", domain="com.microsoft", **attributes
    )
    shapes = {"dx": x, "dw": w, "db": [filters]}
    outputs = [(name, FLOAT, shapes[name]) for name in written if name]
    return model([node], [("dy", FLOAT, dy), ("x", FLOAT, x), ("w", FLOAT, w)], outputs)


def pointwise_gradient(r):
    """Of a convolution with a window of one element; often of one image."""
    axes = r.choice([1, 2, 2, 2, 3])
    batch = r.choice([1, 1, 1, 2])
    channels, filters = (r.choice([1, 2, 3, 7, 16, 31, 64, 129, 200, 256, 512]) for _ in range(2))
    size = [r.choice([1, 2, 3, 5, 7, 9, 14] + [28, 40] * (axes < 3)) for _ in range(axes)]
    x, dy, w = [batch, channels] + size, [batch, filters] + size, [filters, channels] + [1] * axes
    written = r.choice([["dx", "dw", "db"], ["dx", "dw"], ["dx", "dw"], ["dx"]])
    attributes = {"kernel_shape": [1] * axes, "pads": [0] * 2 * axes, "strides": [1] * axes}
    for name in list(attributes):
        if r.random() < 0.3:
            del attributes[name]
    node = helper.make_node(
        "ConvGrad", ["dy", "x", "w"], written, name="node", domain="com.microsoft", **attributes
    )
    shapes = {"dx": x, "dw": w, "db": [filters]}
    outputs = [(name, FLOAT, shapes[name]) for name in written]
    return model([node], [("dy", FLOAT, dy), ("x", FLOAT, x), ("w", FLOAT, w)], outputs)


def relu_gradient(r):
    shape = [r.randint(1, 9) for _ in range(r.randint(1, 4))]
    read = r.choice(["x", "y"])
    kind = r.choice(["Relu", "LeakyRelu"])
    attributes = {"alpha": r.choice([0.0, 0.01, 0.5, 3.0])} if kind == "LeakyRelu" else {}
    domain = "com.microsoft"
    nodes = [
        helper.make_node(kind, ["x"], ["y"], **attributes),
        helper.make_node(kind + "Grad", ["dy", read], ["dx"], name="node", domain=domain, **attributes),
    ]
    # The output must not be the graph's: a value that is read twice is the usual case.
    nodes.append(helper.make_node("Neg", ["y"], ["z"]))
    inputs = [("x", FLOAT, shape), ("dy", FLOAT, shape)]
    return model(nodes, inputs, [("dx", FLOAT, shape), ("z", FLOAT, shape)], [("y", FLOAT, shape)])


def pooling(r):
    axes = r.choice([1, 2, 2, 3])
    kernel = [r.randint(1, 3) for _ in range(axes)]
    strides = [r.randint(1, 3) for _ in range(axes)]
    pads = [r.randint(0, k // 2) for k in kernel]
    size = [k + r.randint(0, 9) for k in kernel]
    count = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(size, pads, kernel, strides)]
    lead = [r.randint(1, 3), r.randint(1, 4)]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads + pads}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "mask"], name="node", **attributes),
        helper.make_node("MaxPoolGrad", ["dy", "mask"], ["dx"], **attributes),
    ]
    inputs = [("x", FLOAT, lead + size), ("dy", FLOAT, lead + count)]
    outputs = [("y", FLOAT, lead + count), ("dx", FLOAT, lead + size)]
    return model(nodes, inputs, outputs, [("mask", INT64, lead + count)])


def batch_norm(r, activation):
    """Whether Y is read twice decides nothing; a plan computes it again for the reader."""
    axes = r.choice([1, 2, 2, 2, 3])
    least = 20
    size = {1: [r.randint(least ** 2, 3000)], 2: [r.randint(least, 40) for _ in range(2)], 3: [8, 8, 9]}[axes]
    channels = r.randint(1, 40)
    x = [r.randint(1, 4), channels] + size
    attributes = {"epsilon": r.choice([1e-5, 1e-3]), "momentum": 0.9, "training_mode": 1}
    inputs = ["x", "scale", "bias", "mean", "variance"]
    outputs = ["y", "new_mean", "new_var", "saved_mean", "saved_inverse"]
    nodes = [
        # The squares of variances are not negative.
        helper.make_node("Abs", ["var"], ["variance"]),
        helper.make_node(
            "BatchNormInternal", inputs, outputs, name="normalization", domain="com.microsoft", **attributes
        ),
        activation,
        helper.make_node("Neg", ["a"], ["z"], name="reader"),
    ]
    vectors = [(name, FLOAT, [channels]) for name in inputs[1:4] + ["var"]]
    values = [(name, FLOAT, [channels]) for name in outputs[1:]]
    values += [("y", FLOAT, x), ("a", FLOAT, x), ("variance", FLOAT, [channels])]
    return model(nodes, [("x", FLOAT, x)] + vectors, [("z", FLOAT, x)], values)


def relu_of_batch_norm(r):
    return batch_norm(r, helper.make_node("Relu", ["y"], ["a"], name="node"))


def clip_of_batch_norm(r):
    made = batch_norm(r, helper.make_node("Clip", ["y", "least", "most"], ["a"], name="node"))
    bounds = {"least": r.choice([0.0, -0.0, -1.0, 0.25]), "most": r.choice([6.0, 1.0, 0.5])}
    for name, number in bounds.items():
        if r.random() < 0.5:
            made.graph.initializer.append(helper.make_tensor(name, FLOAT, [], [number]))
        else:
            made.graph.node.insert(0, helper.make_node("Constant", [], [name], value_float=number))
    return made


def sliced(r):
    """A shape whose channels can be taken apart, each aligned."""
    channels = r.choice([2, 3, 4, 6, 24, 32, 64, 67])
    areas = [[16], [48], [4, 4], [6, 8], [28, 28], [2, 4, 6], [12, 20]]
    return [r.choice([1, 2, 3, 5, 8]), channels] + r.choice(areas)


def normalization_gradient_in_slices(r):
    x = sliced(r)
    names, vector = ["dy", "x", "scale", "mean", "inverse"], [x[1]]
    node = helper.make_node(
        "BatchNormalizationGrad", names, ["dx", "dscale", "dbias"], name="node", domain="com.microsoft", epsilon=1e-5
    )
    inputs = [("dy", FLOAT, x), ("x", FLOAT, x)] + [(name, FLOAT, vector) for name in names[2:]]
    return model([node], inputs, [("dx", FLOAT, x), ("dscale", FLOAT, vector), ("dbias", FLOAT, vector)])


def activation_and_gradient(r):
    """Of y, from what the activation reads or writes."""
    kind, read = r.choice(["Relu", "LeakyRelu"]), r.choice(["y", "a"])
    attributes = {"alpha": r.choice([0.0, 0.01, 3.0])} if kind == "LeakyRelu" else {}
    return [
        helper.make_node(kind, ["y"], ["a"], **attributes),
        helper.make_node(kind + "Grad", ["dy", read], ["dx"], name="node", domain="com.microsoft", **attributes),
        helper.make_node("Neg", ["a"], ["z"]),
    ]


def relu_of_norm_in_slices(r):
    x = sliced(r)
    vector = [x[1]]
    names, written = ["x", "scale", "bias", "mean", "variance"], ["y", "new_mean", "new_var", "saved_mean", "inverse"]
    nodes = [
        helper.make_node("Abs", ["var"], ["variance"]),
        helper.make_node(
            "BatchNormInternal", names, written, domain="com.microsoft", epsilon=1e-5, momentum=0.9, training_mode=1
        ),
    ]
    inputs = [("x", FLOAT, x), ("dy", FLOAT, x)] + [(n, FLOAT, vector) for n in ("scale", "bias", "mean", "var")]
    values = [("y", FLOAT, x), ("a", FLOAT, x)] + [(name, FLOAT, vector) for name in written[1:] + ["variance"]]
    return model(nodes + activation_and_gradient(r), inputs, [("dx", FLOAT, x), ("z", FLOAT, x)], values)


def relu_of_convolution_in_slices(r):
    batch, group = r.choice([2, 3, 5, 8, 33, 40]), r.choice([1, 1, 2])
    channels, filters = group * r.randint(1, 4), group * r.randint(1, 9)
    axes = r.choice([1, 2, 2, 3])
    kernel = [r.randint(1, 4) for _ in range(axes)]
    size = [k + r.randint(0, 12) for k in kernel]
    x, w = [batch, channels] + size, [filters, channels // group] + kernel
    y = [batch, filters] + [s - k + 1 for s, k in zip(size, kernel)]
    inputs = [("x", FLOAT, x), ("w", FLOAT, w), ("dy", FLOAT, y)]
    read = ["x", "w"]
    if r.random() < 0.5:
        inputs.append(("bias", FLOAT, [filters]))
        read.append("bias")
    nodes = [helper.make_node("Conv", read, ["y"], group=group, kernel_shape=kernel)]
    return model(nodes + activation_and_gradient(r), inputs, [("dx", FLOAT, y), ("z", FLOAT, y)], [("y", FLOAT, y), ("a", FLOAT, y)])


def divided_gradient(r):
    """Of a batch that can be divided."""
    return convolution_gradient(r, r.choice([2, 4]), ["dx", "dw"])


def layer_norm_gradient(r):
    rows, width = [r.randint(1, 5), r.randint(1, 9)], r.choice([8, 32, 100, 256])
    names = ["dy", "x", "scale", "mean", "inverse"]
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y", "mean", "inverse"], axis=-1),
        helper.make_node(
            "LayerNormalizationGrad", names, ["dx", "dscale", "dbias"], name="node",
            domain="com.microsoft", axis=-1, epsilon=1e-5,
        ),
    ]
    x, vector, one = rows + [width], [width], rows + [1]
    inputs = [("dy", FLOAT, x), ("x", FLOAT, x), ("scale", FLOAT, vector), ("bias", FLOAT, vector)]
    outputs = [("dx", FLOAT, x), ("dscale", FLOAT, vector), ("dbias", FLOAT, vector)]
    return model(nodes, inputs, outputs, [("mean", FLOAT, one), ("inverse", FLOAT, one), ("y", FLOAT, x)])


def unordered_sum(r):
    """The inputs do not stand in the order in which they appear."""
    shape, count = [r.randint(64, 96), r.randint(64, 96)], r.choice([3, 5, 9, 17])
    names = ["x%d" % i for i in range(count)]
    nodes = [helper.make_node("Neg", [n], ["n" + n]) for n in names]
    r.shuffle(names)
    nodes.append(helper.make_node("Sum", ["n" + n for n in names], ["y"], name="node"))
    values = [("n" + n, FLOAT, shape) for n in names]
    return model(nodes, [(n, FLOAT, shape) for n in names], [("y", FLOAT, shape)], values)


KINDS = [
    running_sum,
    convolution_gradient,
    convolution_gradient,
    pointwise_gradient,
    relu_gradient,
    pooling,
    relu_of_batch_norm,
    clip_of_batch_norm,
    normalization_gradient_in_slices,
    relu_of_norm_in_slices,
    relu_of_convolution_in_slices,
]


INEXACT = [divided_gradient, layer_norm_gradient, unordered_sum]


def write(folder, count, kinds):
    for number in range(count):
        r = random.Random(number)
        onnx.save(kinds[number % len(kinds)](r), str(folder / ("%d.onnx" % number)))


def rounding(n):
    """gamma(n): how far a sum of n products can be off, as a part of the sum of their magnitudes."""
    u = 2.0 ** -24
    return n * u / (1 - n * u)


def tolerances(path, variant, feeds, threads):
    """By output: how far the variant may be off, element by element."""
    node = onnx.load(str(path)).graph.node[-1]
    if node.op_type == "LayerNormalizationGrad":
        dy, x, scale, bias = (feeds[n].astype("d") for n in ("dy", "x", "scale", "bias"))
        mean = lambda a: a.mean(-1, keepdims=True)
        deviation = numpy.sqrt(x.var(-1, keepdims=True) + 1e-5)
        normal = abs((x - mean(x)) / deviation) + abs(bias / scale)
        rows, width, dn = tuple(range(x.ndim - 1)), x.shape[-1], abs(dy * scale)
        sums = 2 * rounding(x.size // width + 16)
        return [
            2 * rounding(width + 16) * (dn + mean(dn) + normal * mean(dn * normal)) / deviation,
            sums * (abs(dy) * normal).sum(rows),
            sums * abs(dy).sum(rows),
        ]
    magnitudes = run(path, {name: abs(value) for name, value in feeds.items()}, threads)
    if node.op_type == "Sum":
        return [2 * rounding(len(node.input)) * abs(m) for m in magnitudes]
    dy = feeds["dy"]
    part = rounding(dy.shape[0] * numpy.prod(dy.shape[2:]))
    part = 2.0 ** -11 + 2.001 * part if variant == "half-precision" else 2 * part
    # Only dW: the rest is bitwise.
    return [part * abs(m) if name == "dw" else 0 for name, m in zip(filter(None, node.output), magnitudes)]


APPROXIMATIONS = ["batch-halves", "batch-quarters", "invertible-layer-norm", "sum-by-appearance", "half-precision"]


def plain_values(path):
    """Numbers without anything special, none near zero."""
    r = numpy.random.RandomState(int(path.name.split(".")[0]))
    feeds = {}
    for value in onnx.load(str(path)).graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        numbers = r.uniform(0.1, 2, shape) * r.choice([-1.0, 1.0], shape)
        feeds[value.name] = numbers.astype(numpy.float32)
    return feeds


def within(path, variant, feeds, expected, found, threads):
    if variant not in APPROXIMATIONS:
        return all(map(equal, expected, found))
    bounds = tolerances(path, variant, feeds, threads)
    close = lambda a, b, bound: numpy.all(abs(a.astype("d") - b) <= bound)
    return all(map(close, expected, found, bounds))


def values(path):
    """Random inputs, with what is special about floating point numbers here and there."""
    r = numpy.random.RandomState(int(path.name.split(".")[0]))
    feeds = {}
    for value in onnx.load(str(path)).graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = numpy.float64 if value.type.tensor_type.elem_type == DOUBLE else numpy.float32
        numbers = r.standard_normal(shape) * 10.0 ** r.uniform(-3, 3, shape)
        # Gradients have many zeros, and may be so small that products underflow.
        numbers *= r.uniform(size=shape) < r.choice([0.3, 1.0])
        numbers *= r.choice([1.0, 1.0, 1.0, 1e-22])
        flat = numbers.reshape(-1)
        for special in (0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1e-42, -1e-42):
            if r.uniform() < 0.2:
                flat[r.randint(flat.size)] = special
        if value.name == "bias":
            # What a bias of -0 does is in test_variants.py.
            numbers += 0.0
        feeds[value.name] = numbers.astype(kind)
    return feeds


def run(path, feeds, threads):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def equal(a, b):
    """Bit by bit; any NaN equals any other."""
    both = numpy.isnan(a) & numpy.isnan(b)
    a, b = numpy.where(both, 0, a), numpy.where(both, 0, b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def compare(folder):
    same, differ = collections.Counter(), []
    for original in sorted(folder.glob("*.onnx")):
        if original.name.count(".") > 1:
            continue
        forms = sorted(folder.glob(original.stem + ".*.onnx"))
        inexact = any(path.name.split(".")[1] in APPROXIMATIONS for path in forms)
        feeds = plain_values(original) if inexact else values(original)
        threads = 1 + int(original.stem) % 4
        expected = run(original, feeds, threads) if forms else []
        for path in forms:
            found = run(path, feeds, threads)
            variant = path.name.split(".")[1]
            if len(found) == len(expected) and within(
                original, variant, feeds, expected, found, threads
            ):
                same[variant] += 1
            else:
                differ.append(path.name)
    json.dump({"equal": same, "differ": differ}, sys.stdout)


def main():
    command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if command == "write":
        write(folder, int(sys.argv[3]), KINDS)
    elif command == "write-inexact":
        write(folder, int(sys.argv[3]), INEXACT)
    else:
        compare(folder)


if __name__ == "__main__":
    main()
