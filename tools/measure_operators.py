#!/usr/bin/env python3
"""What ONNX Runtime does with single operators: writes testdata/operators.json.

    cargo build -p malloc-counter
    .venv/bin/python tools/measure_operators.py

Every operator runs alone, on the CPU, with two threads, arena, pattern and reuse off. Recorded are the
types and shapes of its outputs, what its kernel allocated besides them, and whether output 0 took over
the memory of input 0, where both are alike. The same versions of ONNX Runtime give the same shapes;
workspaces repeat to a few kilobytes. Cases that the runtime refuses are reported and left out.
"""

import json
import os
import sys

if "CKPT_COUNTED" not in os.environ:  # preloading works at start only
    from measure import malloc_counter

    environment = dict(os.environ, LD_PRELOAD=malloc_counter(), CKPT_COUNTED="1")
    os.execve(sys.executable, [sys.executable] + sys.argv, environment)

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from counters import MallocCounter

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "operators.json")
THREADS = 2
TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_,
         "uint8": np.uint8, "uint32": np.uint32}


def x(*shape):
    """A float tensor that is computed."""
    return {"type": "float", "shape": list(shape)}


def like(kind, *shape):
    """A tensor of another type that is computed; integers are zero, booleans true."""
    return {"type": kind, "shape": list(shape)}


def const(values, kind="int64"):
    """A tensor of known contents."""
    array = np.asarray(values, TYPES[kind])
    return {"type": kind, "shape": list(array.shape), "values": [v.item() for v in array.flatten()]}


def op(name, *inputs, outputs=1, opset=15, domain="", **attributes):
    return {"op": name, "domain": domain, "opset": opset, "inputs": list(inputs), "outputs": outputs,
            "attributes": attributes}


def ms(name, *inputs, **rest):
    return op(name, *inputs, domain="com.microsoft", **rest)


def cases():
    image, rows = x(2, 16, 64, 64), x(64, 32, 128)
    for name in ("Relu Sigmoid Tanh Elu Selu Celu LeakyRelu HardSigmoid Softplus Softsign ThresholdedRelu Shrink "
                 "Exp Log Neg Abs Sqrt Floor Ceil Round Erf Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
                 "Acosh Atanh Sign Identity IsNaN IsInf HardSwish Softmax LogSoftmax Hardmax LpNormalization "
                 "MeanVarianceNormalization Transpose Flatten Size Shape").split():
        yield op(name, image)
    for name in "Gelu Mish".split():
        yield op(name, image, opset=20)
    for name in "Gelu FastGelu QuickGelu".split():
        yield ms(name, rows)
    yield op("Clip", image, const(0.0, "float"), const(6.0, "float"))
    yield op("PRelu", image, x(16, 1, 1))
    yield ms("BiasGelu", rows, x(128))
    yield ms("FastGelu", rows, x(128))
    yield ms("Scale", rows, const(2.0, "float"))
    yield op("Not", like("bool", 512, 1024))
    for to in ("double", "int32", "int64", "bool", "float"):
        yield op("Cast", image, to=helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[to])))
    yield op("CastLike", image, like("int64", 1))

    for name in "Add Sub Mul Div Pow PRelu Equal Greater GreaterOrEqual Less LessOrEqual".split():
        yield op(name, image, image if name == "PRelu" else x(16, 1, 64))
    yield op("Mod", image, x(16, 1, 64), fmod=1)
    for name in "And Or Xor".split():
        yield op(name, like("bool", 512, 1024), like("bool", 1024))
    for name in "Sum Max Min Mean".split():
        for count in (1, 2, 3, 5):
            yield op(name, *[rows] * count)
        yield op(name, rows, x(128), x(32, 1))
    yield op("Where", like("bool", 64, 32, 128), rows, const(0.0, "float"))
    yield op("Where", like("bool", 32, 1), rows, rows)

    for name in "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp".split():
        for axes in ([0], [1], [2], [0, 2], [1, 2], [0, 1], [0, 1, 2]):
            if name == "ReduceSum":
                yield op(name, rows, const(axes), keepdims=axes[0] % 2)
            else:
                yield op(name, rows, axes=axes, keepdims=axes[0] % 2)
    yield op("ReduceSum", rows)
    yield op("ReduceSum", rows, const([]), noop_with_empty_axes=1)
    yield op("ReduceSum", x(2, 32, 28, 2, 28, 2), const([3, 5]))
    yield op("ReduceMean", x(2, 32, 28, 2, 28, 2), axes=[3, 5])
    yield op("ReduceSum", x(16, 4, 8, 4, 16, 4), const([0, 2, 4]))
    for name in "ArgMax ArgMin".split():
        yield op(name, rows, axis=-1, keepdims=0)
        yield op(name, rows, axis=0)
    yield op("TopK", rows, const([5]), outputs=2)
    yield op("TopK", rows, const([5]), outputs=2, axis=0)
    yield op("CumSum", rows, const(1))

    for size, channels, filters, kernel, attributes in (
        (56, 64, 64, 3, {"pads": [1] * 4}), (14, 128, 256, 3, {"pads": [1] * 4}), (56, 64, 128, 1, {}),
        (56, 64, 128, 1, {"strides": [2, 2]}), (112, 3, 32, 7, {"pads": [3] * 4, "strides": [2, 2]}),
        (28, 64, 64, 3, {"pads": [1] * 4, "group": 64}), (28, 64, 64, 3, {"pads": [1] * 4, "group": 4}),
        (28, 32, 48, 3, {"dilations": [2, 2]}), (7, 64, 512, 5, {"auto_pad": "SAME_UPPER"}),
        (30, 8, 8, 3, {"auto_pad": "VALID", "strides": [2, 2]}), (31, 8, 16, 4, {"auto_pad": "SAME_LOWER", "strides": [3, 3]}),
        (9, 8, 8, 9, {}),
    ):
        weights = x(filters, channels // attributes.get("group", 1), kernel, kernel)
        forward = op("Conv", x(2, channels, size, size), weights, **attributes)
        yield forward
        yield op("Conv", x(2, channels, size, size), weights, x(filters), **attributes)
        if "auto_pad" not in attributes:
            output = run(forward)["outputs"][0]["shape"]
            yield ms("ConvGrad", x(*output), x(2, channels, size, size), weights, outputs=3, **attributes)
            yield ms("ConvGrad", x(*output), x(2, channels, size, size), weights, outputs=[1, 0], **attributes)
            yield ms("ConvGrad", x(*output), x(2, channels, size, size), weights, outputs=[0, 1], **attributes)
    yield op("Conv", x(4, 32, 512), x(64, 32, 5), pads=[2, 2])
    yield op("Conv", x(2, 8, 16, 24, 24), x(16, 8, 3, 3, 3), pads=[1] * 6)
    for attributes in ({"strides": [2, 2]}, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]},
                       {"group": 4}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
                       {"strides": [3, 3], "output_shape": [84, 85]}, {"dilations": [2, 2]}):
        for kernel in (2, 3):
            weights = x(64, 32 // attributes.get("group", 1), kernel, kernel)
            yield op("ConvTranspose", x(2, 64, 28, 28), weights, **attributes)
            yield op("ConvTranspose", x(2, 64, 28, 28), weights, x(32), **attributes)

    for attributes in (
        {"kernel_shape": [2, 2], "strides": [2, 2]}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [2, 2], "strides": [4, 4], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [4, 2], "strides": [3, 5], "ceil_mode": 1}, {"kernel_shape": [3, 3], "auto_pad": "VALID", "strides": [2, 2]},
        {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "strides": [2, 3]},
    ):
        yield op("MaxPool", image, outputs=2, **attributes)
        yield op("MaxPool", image, **attributes)
        yield op("AveragePool", image, **attributes)
    yield op("MaxPool", image, kernel_shape=[3, 3], dilations=[2, 2])
    yield op("MaxPool", x(4, 16, 4096), kernel_shape=[3], strides=[2])
    yield op("AveragePool", image, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19)
    yield op("LpPool", image, kernel_shape=[2, 2])
    for name in "GlobalAveragePool GlobalMaxPool GlobalLpPool".split():
        yield op(name, image)

    for name in "Resize".split():
        scales = const([1, 1, 1.5, 2], "float")
        yield op(name, image, None, scales)
        yield op(name, image, None, scales, mode="linear", coordinate_transformation_mode="align_corners")
        yield op(name, image, None, None, const([2, 16, 100, 31]))
        yield op(name, image, None, None, const([2, 16, 100, 31]), mode="linear")
        yield op(name, image, None, None, const([100, 31]), axes=[2, 3], opset=18)
        yield op(name, image, None, None, const([100, 31]), axes=[2, 3], opset=18, keep_aspect_ratio_policy="not_larger")
        yield op(name, image, None, None, const([100, 31]), axes=[2, 3], opset=18, keep_aspect_ratio_policy="not_smaller")
    yield op("Upsample", image, const([1, 1, 2, 2.7], "float"), opset=9)

    yield op("MatMul", x(2, 12, 64, 32), x(12, 32, 96))
    yield op("MatMul", x(256, 512), x(512, 384))
    yield op("MatMul", x(512), x(4, 512, 384))
    yield op("MatMul", x(64, 256, 512), x(512))
    for attributes in ({"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "alpha": 0.5}, {"transBatchA": 1},
                       {"transBatchB": 1, "transB": 1}, {"transBatchA": 1, "transA": 1}):
        yield ms("FusedMatMul", x(48, 48, 48), x(48, 48, 48), **attributes)
    yield ms("FusedMatMul", x(20, 30, 40), x(30, 40, 50), transBatchA=1)
    yield op("Gemm", x(256, 512), x(384, 512), x(384), transB=1)
    yield op("Gemm", x(512, 256), x(512, 384), transA=1)
    yield op("Gemm", x(256, 512), x(512, 384), x(256, 1), alpha=2.0, beta=0.5)
    for equation, shapes in (("bij,bjk->bik", ((8, 64, 32), (8, 32, 96))), ("bhqd,bhkd->bhqk", ((2, 4, 64, 32), (2, 4, 96, 32))),
                             ("ij->ji", ((256, 512),)), ("...ij->...", ((8, 64, 32),)), ("i,j->ij", ((256,), (512,))),
                             ("ijk,k->ij", ((64, 32, 128), (128,)))):
        yield op("Einsum", *[x(*shape) for shape in shapes], equation=equation)

    channels = [x(16)] * 4
    yield op("BatchNormalization", image, *channels)
    yield ms("BatchNormInternal", image, *channels, outputs=5)
    yield ms("BatchNormalizationGrad", image, image, x(16), x(16), x(16), outputs=3, epsilon=1e-5)
    for axis in (-1, 1):
        scale, stats = (x(128), x(64, 32, 1)) if axis == -1 else (x(32, 128), x(64, 1, 1))
        yield op("LayerNormalization", rows, scale, scale, outputs=3, axis=axis, opset=17)
        yield op("LayerNormalization", rows, scale, scale, axis=axis, opset=17)
        yield op("LayerNormalization", rows, scale, scale, outputs=3, axis=axis)
        yield ms("LayerNormalizationGrad", rows, rows, scale, stats, stats, outputs=3, axis=axis)
        yield ms("SimplifiedLayerNormalizationGrad", rows, rows, scale, stats, outputs=2, axis=axis)
        yield op("SimplifiedLayerNormalization", rows, scale, outputs=2, axis=axis)
    yield ms("SkipLayerNormalization", rows, rows, x(128), x(128))
    yield op("InstanceNormalization", image, x(16), x(16))
    yield op("GroupNormalization", image, x(4), x(4), num_groups=4, opset=18)
    yield op("LRN", image, size=3)

    for axis in (0, 1, -1):
        yield op("Softmax", rows, axis=axis)
        yield op("LogSoftmax", rows, axis=axis)
        yield op("Softmax", rows, axis=axis, opset=11)
        yield ms("SoftmaxGrad_13", rows, rows, axis=axis)
        yield ms("LogSoftmaxGrad_13", rows, rows, axis=axis)
        yield ms("SoftmaxGrad", rows, rows, axis=axis)
        yield ms("LogSoftmaxGrad", rows, rows, axis=axis)
    for outputs in (1, 2):
        for reduction in ("mean", "none", "sum"):
            yield op("SoftmaxCrossEntropyLoss", x(512, 1000), like("int64", 512), outputs=outputs, reduction=reduction)
            yield op("SoftmaxCrossEntropyLoss", x(2, 8, 128, 128), like("int64", 2, 128, 128), outputs=outputs, reduction=reduction)
    yield op("SoftmaxCrossEntropyLoss", x(512, 1000), like("int64", 512), x(1000), outputs=2)
    yield ms("SoftmaxCrossEntropyLossInternal", x(512, 1000), like("int64", 512), None, const(-100), outputs=2, reduction="mean")
    yield ms("SoftmaxCrossEntropyLossGrad", x(), x(512, 1000), like("int64", 512), reduction="mean")
    yield ms("SoftmaxCrossEntropyLossGrad", x(512), x(512, 1000), like("int64", 512), reduction="none")
    yield ms("SoftmaxCrossEntropyLossGrad", x(), x(2, 8, 128, 128), like("int64", 2, 128, 128), reduction="mean")
    yield ms("SoftmaxCrossEntropyLossInternalGrad", x(), x(512, 1000), like("int64", 512), None, const(-100), reduction="mean")
    yield op("NegativeLogLikelihoodLoss", x(512, 1000), like("int64", 512))

    for name in "ReluGrad SigmoidGrad TanhGrad GeluGrad FastGeluGrad QuickGeluGrad LeakyReluGrad".split():
        yield ms(name, rows, rows)
    for name in "BiasGeluGrad_dX BiasFastGeluGrad_dX".split():
        yield ms(name, rows, rows, x(128))

    yield op("Dropout", rows, outputs=2)
    yield op("Dropout", rows)
    yield op("Dropout", rows, const(0.5, "float"), const(True, "bool"), outputs=2)
    yield op("Dropout", rows, const(0.5, "float"), const(True, "bool"))
    yield ms("DropoutGrad", rows, like("bool", 64, 32, 128), const(0.5, "float"), const(True, "bool"))
    yield op("RandomNormalLike", rows)
    yield op("RandomUniformLike", rows, dtype=11)
    yield op("RandomUniform", shape=[64, 2048])
    yield op("Bernoulli", rows)
    yield op("Multinomial", x(512, 32), sample_size=300)

    yield op("Reshape", rows, const([0, -1]))
    yield op("Reshape", rows, const([128, 4, -1]))
    yield op("Squeeze", x(64, 1, 2048, 1), const([1]))
    yield op("Squeeze", x(64, 1, 2048, 1))
    yield op("Unsqueeze", rows, const([0, -1]))
    yield op("Flatten", rows, axis=2)
    yield op("Shape", rows, start=1)
    yield ms("PassThrough", rows, image, outputs=2)
    yield ms("BroadcastGradientArgs", const([2, 1, 4, 1]), const([3, 4, 5]), outputs=2)
    yield op("Transpose", rows, perm=[1, 0, 2])
    yield op("Transpose", x(8, 64, 4, 128), perm=[0, 2, 1, 3])
    yield op("Expand", x(64, 1, 128), const([1, 32, 1]))
    yield op("Expand", x(128), const([64, 32, 128]))
    yield op("Expand", x(2, 512, 1, 1), const([2, 512, 28, 28]))
    yield op("Expand", x(2, 16, 32, 1, 32, 1), const([2, 16, 32, 2, 32, 2]))
    yield op("Expand", x(1), const([64, 2048]))
    yield op("Expand", rows, const([1]))
    yield op("Tile", rows, const([2, 1, 3]))
    yield op("Concat", rows, x(64, 8, 128), axis=1)
    yield ms("ConcatTraining", rows, x(64, 8, 128), axis=1, outputs=2)
    yield op("Split", rows, axis=2, outputs=4)
    yield op("Split", rows, const([100, 28]), axis=2, outputs=2)
    yield op("Split", x(100, 2048), axis=0, num_outputs=3, outputs=3, opset=18)
    yield ms("SplitTraining", rows, const([100, 28]), axis=2, outputs=2)
    yield op("Slice", rows, const([1, -5]), const([60, 1000]), const([0, 2]), const([3, 1]))
    yield op("Slice", rows, const([-1]), const([-1000]), const([1]), const([-2]))
    yield op("Slice", rows, const([5]), const([5]), const([1]))
    yield op("Slice", rows, const([8, 8]), const([40, 24]))
    yield ms("SliceGrad", x(32, 16, 128), const([64, 32, 128]), const([8, 8]), const([40, 24]), const([0, 1]))
    yield op("Pad", rows, const([0, 1, 2, 3, 4, 5]))
    yield op("Pad", image, const([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
    yield op("Pad", rows, const([0, 0, -2, 0, 0, -3]))
    yield op("Pad", rows, const([1, 2]), None, const([-1]), opset=18)
    yield op("DepthToSpace", image, blocksize=4)
    yield op("SpaceToDepth", image, blocksize=4)
    yield op("Trilu", x(512, 512))
    yield op("EyeLike", x(512, 512))
    yield op("Gather", x(1000, 256), like("int64", 64, 32))
    yield op("Gather", rows, like("int64", 16), axis=-1)
    yield op("GatherElements", rows, like("int64", 64, 8, 128), axis=1)
    yield op("GatherND", rows, like("int64", 100, 2))
    yield op("GatherND", rows, like("int64", 64, 10, 1), batch_dims=1)
    yield op("ScatterElements", rows, like("int64", 64, 8, 128), x(64, 8, 128), axis=1)
    yield op("ScatterND", rows, like("int64", 10, 2), x(10, 128))
    yield op("OneHot", like("int64", 64, 32), const(100), const([0.0, 1.0], "float"))
    yield op("OneHot", like("int64", 64, 32), const(100), const([0.0, 1.0], "float"), axis=0)
    yield ms("GatherGrad", const([1000, 256]), like("int64", 64, 32), x(64, 32, 256))
    yield ms("GatherElementsGrad", x(64, 8, 128), const([64, 32, 128]), like("int64", 64, 8, 128), axis=1)
    yield ms("GatherNDGrad", const([64, 32, 128]), like("int64", 100, 2), x(100, 128))
    yield op("ConstantOfShape", const([64, 2048]))
    yield op("Range", const(0), const(100000), const(3))
    yield op("Range", const(0.5, "float"), const(10.0, "float"), const(0.25, "float"))

    gates = lambda count: (x(20, 16, 64), x(1, count * 96, 64), x(1, count * 96, 96))
    for name, count, outputs in (("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3)):
        yield op(name, *gates(count), hidden_size=96, outputs=outputs)
        both = (x(20, 16, 64), x(2, count * 96, 64), x(2, count * 96, 96))
        yield op(name, *both, hidden_size=96, outputs=outputs, direction="bidirectional")
    yield ms("LSTMTraining", *gates(4), hidden_size=96, outputs=5)
    yield ms("GRUTraining", *gates(3), hidden_size=96, outputs=3)
    every, last = x(20, 1, 16, 96), x(1, 16, 96)
    yield ms("LSTMGrad", *gates(4), None, last, last, every, every, x(20, 1, 16, 384), every, last, last, hidden_size=96,
             outputs=7)
    yield ms("GRUGrad", *gates(3), x(1, 6 * 96), None, last, every, x(20, 1, 16, 288), every, last, hidden_size=96, outputs=5)
    yield ms("InPlaceAccumulatorV2", rows, rows, const([True], "bool"))


counter = MallocCounter()


def session(nodes, inputs, constants, opset):
    """The nodes in a graph whose only output is small, so that theirs are freed."""
    nodes = nodes + [helper.make_node("Neg", ["small"], ["done"])]
    inputs = inputs + [helper.make_tensor_value_info("small", 1, [1])]
    graph = helper.make_graph(nodes, "case", inputs, [helper.make_tensor_value_info("done", 1, [1])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = THREADS
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def build(case):
    """Node, graph inputs, constants and fed arrays."""
    names, inputs, constants, arrays = [], [], [], {"small": np.zeros(1, np.float32)}
    random = np.random.default_rng(0)
    for position, tensor in enumerate(case["inputs"]):
        name = "" if tensor is None else "in%d" % position
        names.append(name)
        if tensor is None:
            continue
        kind = TYPES[tensor["type"]]
        if "values" in tensor:
            constants.append(numpy_helper.from_array(np.array(tensor["values"], kind).reshape(tensor["shape"]), name))
            continue
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), tensor["shape"]))
        full = {"b": np.ones, "f": random.random}.get(np.dtype(kind).kind, np.zeros)
        arrays[name] = np.asarray(full(tensor["shape"])).astype(kind)
    wanted = case["outputs"]
    wanted = wanted if isinstance(wanted, list) else [1] * wanted
    outputs = ["out%d" % i if there else "" for i, there in enumerate(wanted)]
    node = helper.make_node(case["op"], names, outputs, domain=case["domain"], **case["attributes"])
    return node, inputs, constants, arrays


def peak(runner, arrays):
    runner.run(None, arrays)
    return counter.during(lambda: runner.run(None, arrays))


def run(case):
    node, inputs, constants, arrays = build(case)
    outputs = [name for name in node.output if name]
    # The shapes, from a run that returns the outputs.
    # PassThrough must not write graph outputs.
    copies = [helper.make_node("Identity", [name], ["copy_" + name]) for name in outputs]
    returned = [onnx.ValueInfoProto(name="copy_" + name) for name in outputs]
    graph = helper.make_graph([node] + copies, "case", inputs, returned, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case["opset"]), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    real = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {name: array for name, array in arrays.items() if name != "small"}
    values = real.run(None, fed)
    kinds = {np.dtype(kind): name for name, kind in TYPES.items()}
    result = dict(case)
    result["outputs"] = [None] * len(node.output)
    for name, value in zip(outputs, values):
        value = np.asarray(value)
        result["outputs"][list(node.output).index(name)] = {"type": kinds[value.dtype], "shape": list(value.shape)}
    size = sum(np.asarray(value).nbytes for value in values)
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype), np.shape(v))
                for name, v in zip(outputs, values)]
    alone = peak(session([node], inputs, constants, case["opset"]), arrays)
    aliased = case["op"] in ALIASES
    result["workspace"] = max(0, alone - (0 if aliased else size))
    result["takes_over"] = takes_over(case, result, node, inputs, constants, arrays)
    return result


def takes_over(case, result, node, inputs, constants, arrays):
    """Is output 0 in the memory of input 0, where that is computed and read by nobody else? None if they differ."""
    first, output = case["inputs"][0] if case["inputs"] else None, result["outputs"][0]
    if not first or "values" in first or not output or first["type"] not in ("float", "bool"):
        return None
    if first["shape"] != output["shape"] or len(first["shape"]) < 2 or list(node.input).count("in0") > 1:
        return None
    size = int(np.prod(first["shape"])) * np.dtype(TYPES[first["type"]]).itemsize
    if size != int(np.prod(output["shape"])) * np.dtype(TYPES[output["type"]]).itemsize:
        return None
    before = helper.make_node("Neg" if first["type"] == "float" else "Not", ["in0"], ["made"])
    node.input[0] = "made"
    others = sum(int(np.prod(o["shape"])) * np.dtype(TYPES[o["type"]]).itemsize for o in result["outputs"][1:] if o)
    chained = peak(session([before, node], inputs, constants, case["opset"]), arrays)
    return bool(chained - result["workspace"] - others < 1.5 * size)


ALIASES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "PassThrough")


def main():
    results, refused = [], []
    for case in cases():
        try:
            results.append(run(case))
        except Exception as problem:  # the runtime's own exceptions have no common base
            refused.append("%s: %s" % (case["op"], str(problem).splitlines()[0][:900]))
    for line in refused:
        print("refused:", line)
    with open(TARGET, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")
    print("%d cases" % len(results))


if __name__ == "__main__":
    main()
