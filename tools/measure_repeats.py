#!/usr/bin/env python3
"""Which operators give the same bits when they are computed twice: writes testdata/repeats.json.

    .venv/bin/python tools/measure_repeats.py

The cases of testdata/operators.json and those below run on the CPU, with random numbers, in a graph that has the
node twice (with optimizations off, so that nobody merges the two), with 1, 2 and 4 threads, three times each. All
results of a case with one number of threads have to be equal bit by bit; results of different numbers of threads
need not be, since a step never mixes them. Recorded are, for each operator, how many cases ran, whether all were equal, and of operators of
which no case ran what the runtime said. `passes/src/verify/trust.rs` may trust what is equal here.
"""

import json
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "testdata", "operators.json")
TARGET = os.path.join(HERE, "..", "testdata", "repeats.json")
TYPES = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_,
         "uint8": np.uint8, "int8": np.int8, "uint32": np.uint32}
THREADS, TIMES = (1, 2, 4), 3


def x(*shape, kind="float"):
    return {"type": kind, "shape": list(shape)}


def const(values, kind="int64"):
    array = np.asarray(values, TYPES[kind])
    return {"type": kind, "shape": list(array.shape), "values": [v.item() for v in array.flatten()]}


def op(name, *inputs, outputs=1, opset=15, domain="", **attributes):
    return {"op": name, "domain": domain, "opset": opset, "inputs": list(inputs), "outputs": [{}] * outputs,
            "attributes": attributes}


def ms(name, *inputs, **rest):
    return op(name, *inputs, domain="com.microsoft", **rest)


def more_cases():
    """Of operators that testdata/operators.json has no cases of, and larger ones of those that add up."""
    image, rows = x(2, 16, 64, 64), x(64, 32, 128)
    for steps, batch, width, hidden in ((20, 16, 64, 96), (3, 1, 5, 7), (40, 64, 128, 128)):
        every, last = x(steps, 1, batch, hidden), x(1, batch, hidden)
        gates = lambda count: (x(steps, batch, width), x(1, count * hidden, width), x(1, count * hidden, hidden))
        yield ms("LSTMTraining", *gates(4), hidden_size=hidden, outputs=5)
        yield ms("LSTMTraining", *gates(4), x(1, 8 * hidden), None, last, last, hidden_size=hidden, outputs=5)
        yield ms("GRUTraining", *gates(3), hidden_size=hidden, outputs=3, linear_before_reset=1)
        yield ms("GRUTraining", *gates(3), x(1, 6 * hidden), None, last, hidden_size=hidden, outputs=3, linear_before_reset=1)
        yield ms("LSTMGrad", *gates(4), None, last, last, every, every, x(steps, 1, batch, 4 * hidden), every, last, last,
                 hidden_size=hidden, outputs=7)
        yield ms("GRUGrad", *gates(3), x(1, 6 * hidden), None, last, every, x(steps, 1, batch, 3 * hidden), every, last,
                 hidden_size=hidden, linear_before_reset=1, outputs=5)
    for left, right in (((64, 32, 128), (64, 32, 128)), ((64, 32, 128), (128,)), ((32, 1), (64, 32, 128)), ((512, 512), (512, 1))):
        out = np.broadcast_shapes(left, right)
        yield ms("DivGrad", x(*out), x(*left), x(*right), outputs=2)
    yield ms("ScaledSum", rows, rows, scale_0=0.5, scale_1=0.25)
    yield ms("ScaledSum", rows, rows, rows, scale_0=0.5, scale_1=0.25, scale_2=2.0)
    yield ms("Trilu", x(4, 256, 256))
    yield ms("Trilu", x(4, 256, 256), const(1), upper=0)
    yield ms("GroupNorm", x(2, 32, 32, 64), x(64), x(64), epsilon=1e-5, groups=8, activation=0)
    yield ms("BatchScale", rows, scale_0=0.5, scale_1=0.25, outputs=2)
    yield ms("BiasSplitGelu", x(2, 64, 2560), x(2560))
    quant = (const(0.01, "float"), const(0.0, "float"))
    for shape in ((64, 32, 128), (7,)):
        yield ms("FakeQuant", x(*shape), *quant, quant_min=-128, quant_max=127, outputs=2)
        yield ms("FakeQuantGrad", x(*shape), x(*shape, kind="bool"))
    yield ms("IsFinite", rows)
    yield ms("IsAllFinite", rows, image)
    yield ms("MixedPrecisionScale", const(2.0, "float"), rows, outputs=1, to=1)
    yield ms("MaxpoolWithMask", image, x(2, 16, 64, 64, kind="int32"), kernel_shape=[3, 3], strides=[2, 2])
    indices = const(list(range(0, 200, 2)))
    yield ms("PadAndUnflatten", x(100, 64), indices, const([10, 20]), outputs=1)
    yield ms("FlattenAndUnpad", x(10, 20, 64), indices, outputs=2)
    yield ms("ShrunkenGather", x(1000, 64), const(list(range(0, 900, 3))))
    yield ms("ShrunkenGather", x(1000, 64), const(list(range(0, 60, 3))), axis=1)
    for rows_, classes in ((512, 1000), (3, 5), (8192, 64)):
        for reduction in ("mean", "sum"):
            yield ms("SoftmaxCrossEntropy", x(rows_, classes), x(rows_, classes), reduction=reduction, outputs=2)
            yield ms("SoftmaxCrossEntropyGrad", x(), x(rows_, classes), x(rows_, classes), reduction=reduction)
            labels = x(rows_, kind="int64")
            for domain in ("", "com.microsoft"):
                name = "SparseSoftmaxCrossEntropy"
                yield op(name, x(rows_, classes), labels, reduction=reduction, outputs=2, domain=domain)
                yield op(name, x(rows_, classes), labels, x(rows_), reduction=reduction, outputs=2, domain=domain)
                yield op(name + "Grad", x(), x(rows_, classes), labels, reduction=reduction, domain=domain)
    yield ms("BitmaskDropoutGrad", rows, x(8192, kind="uint32"), const(0.5, "float"), const(True, "bool"))
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield op(name, x(512, 64, kind="int32"), x(64, kind="int32"), opset=18)
    yield op("BitwiseNot", x(512, 64, kind="int32"), opset=18)
    yield op("QuantizeLinear", rows, const(0.02, "float"), const(0, "uint8"))
    yield op("DequantizeLinear", x(64, 32, 128, kind="uint8"), const(0.02, "float"), const(0, "uint8"))
    yield ms("FusedConv", image, x(8, 16, 3, 3), activation="Relu")
    yield ms("FusedGemm", x(256, 512), x(512, 384), x(384), activation="Relu")
    yield ms("TransposeMatMul", x(256, 512), x(512, 384))
    yield ms("Inverse", x(8, 32, 32))
    yield op("Det", x(8, 32, 32))
    yield op("MatMulInteger", x(64, 128, kind="uint8"), x(128, 32, kind="uint8"))
    yield op("NonZero", rows)
    yield op("Unique", rows, outputs=4)
    yield op("Compress", rows, x(64, kind="bool"), axis=0)
    yield op("Scatter", rows, x(64, 8, 128, kind="int64"), x(64, 8, 128), opset=10)
    yield op("BlackmanWindow", const(1000), opset=17)
    yield op("HammingWindow", const(1000), opset=17)
    yield op("HannWindow", const(1000), opset=17)
    yield op("CenterCropPad", rows, const([32, 64, 64]), opset=18)
    yield op("ReverseSequence", rows, const([3] * 32))
    for name in ("EluGrad", "ErfGrad", "SinGrad", "HardSigmoidGrad"):
        yield ms(name, rows, rows)
    yield ms("GlobalAveragePoolGrad", x(2, 16, 1, 1), image)
    yield ms("NhwcMaxPool", x(2, 64, 64, 16, kind="uint8"), kernel_shape=[3, 3])
    yield ms("BiasSoftmax", x(8, 64, 64), x(8, 64, 64), axis=2, is_inner_broadcast=0)
    yield ms("InvertibleLayerNormalizationGrad", rows, rows, x(128), x(128), x(64, 32, 1), outputs=3)
    yield ms("SkipSimplifiedLayerNormalization", rows, rows, x(128))
    yield ms("ReduceAllL2", rows, image)
    yield ms("ReduceSumTraining", rows, const([0, 1]))
    yield ms("ResizeGrad", image, image, const([], "float"), const([1, 1, 1, 1], "float"))
    yield op("GridSample", image, x(2, 32, 32, 2), opset=16)
    yield ms("ConvTransposeGrad", x(2, 8, 66, 66), image, x(16, 8, 3, 3), outputs=3)
    yield op("MaxPoolGrad", image, x(2, 16, 64, 64, kind="int64"), kernel_shape=[1, 1])
    yield ms("PassThrough", rows)


def model_of(case, random):
    names, inputs, constants, arrays = [], [], [], {}
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
        whole = np.dtype(kind).kind
        drawn = {"b": lambda: random.random(tensor["shape"]) < 0.5, "f": lambda: random.standard_normal(tensor["shape"])}
        # Whole numbers are indices or labels: small enough for all of the cases' tables.
        array = drawn.get(whole, lambda: random.integers(0, 2, tensor["shape"]))()
        arrays[name] = np.asarray(array).astype(kind)
    nodes, results = [], []
    for copy in ("a", "b"):
        outputs = [copy + str(i) if made is not None else "" for i, made in enumerate(case["outputs"])]
        nodes.append(helper.make_node(case["op"], names, outputs, domain=case["domain"], **case["attributes"]))
        # PassThrough must not write graph outputs.
        for name in filter(None, outputs):
            nodes.append(helper.make_node("Identity", [name], ["copy_" + name]))
            results.append("copy_" + name)
    returned = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph(nodes, "case", inputs, returned, constants)
    opsets = [helper.make_opsetid("", case["opset"]), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return model.SerializeToString(), arrays, len(results) // 2


def equal(case, random):
    """Have all computations the same bits, whatever else is running?"""
    model, arrays, count = model_of(case, random)
    for threads in THREADS:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        first = None
        for _ in range(TIMES):
            values = [np.asarray(value).tobytes() for value in session.run(None, arrays)]
            first = first or values[:count]
            if values[:count] != first or values[count:] != first:
                return False
    return True


def measured(cases):
    """One operator's cases, in a process of their own: some kernels crash."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        random = np.random.default_rng(0)
        entry = {"cases": 0, "equal": True, "refused": None}
        for case in cases:
            try:
                same = equal(case, random)
            except Exception as problem:  # the runtime's own exceptions have no common base
                entry["refused"] = str(problem).splitlines()[0][:200]
                continue
            entry["cases"] += 1
            entry["equal"] &= same
        with os.fdopen(writer, "w") as file:
            json.dump(entry, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else {"cases": 0, "equal": False, "refused": "the kernel crashes"}


def main():
    by_operator = {}
    with open(CASES) as file:
        cases = json.load(file) + list(more_cases())
    for case in cases:
        by_operator.setdefault((case["domain"], case["op"]), []).append(case)
    found = {key: measured(cases) for key, cases in sorted(by_operator.items())}
    lines = []
    for (domain, name), entry in found.items():
        line = {"domain": domain, "op": name, "cases": entry["cases"]}
        line.update({"equal": entry["equal"]} if entry["cases"] else {"refused": entry["refused"]})
        lines.append(json.dumps(line))
    with open(TARGET, "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    unequal = [name for (_, name), entry in found.items() if entry["cases"] and not entry["equal"]]
    print("%d operators; not equal: %s" % (len(found), ", ".join(unequal)))
    for (domain, name), entry in found.items():
        if entry["refused"]:
            print("refused:", domain, name, entry["cases"], entry["refused"])


if __name__ == "__main__":
    main()
