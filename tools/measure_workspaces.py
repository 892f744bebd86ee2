#!/usr/bin/env python3
"""What ONNX Runtime's CPU kernels allocate, for every operator that the tables know: writes testdata/workspaces.json.

    cargo build -p malloc-counter
    .venv/bin/python tools/measure_workspaces.py [--check]

Together with the cases of measure_operators.py each operator of `cargo run -p ckpt-passes --example operators` is measured, or
is in UNMEASURED with the reason; otherwise this fails. That an operator has no kernel is tried: the runtime has to refuse its case.
Each case runs in a process of its own, with two threads and with four; `workspace_4` is there where four take more. With
--check nothing is written: it fails where a workspace is not what is recorded.
"""

import json
import os
import subprocess
import sys

from measure_operators import const, like, ms, op, x
import measure_operators as single

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TARGET = os.path.join(ROOT, "testdata", "workspaces.json")
# What the runtime allocates for its own bookkeeping varies by less.
BOOKKEEPING = 24 << 10

SUBGRAPHS = "has subgraphs, whose nodes are measured by themselves; not planned inside"
SEQUENCES = "takes sequences of tensors, and stands behind the step that is planned"
NO_TENSORS = "takes or gives what is no tensor: left alone, and counted as what is put into it"
COLLECTIVE = "needs other processes"
FOREIGN = "hands over to code outside the runtime"
UNMEASURED = {
    "If": SUBGRAPHS, "Loop": SUBGRAPHS, "Scan": SUBGRAPHS,
    "SequenceAt": NO_TENSORS, "SequenceConstruct": NO_TENSORS, "SequenceEmpty": NO_TENSORS, "SequenceErase": NO_TENSORS,
    "SequenceInsert": NO_TENSORS, "SequenceLength": NO_TENSORS, "SequenceMap": NO_TENSORS, "SplitToSequence": NO_TENSORS,
    "ConcatFromSequence": NO_TENSORS, "Optional": NO_TENSORS, "OptionalGetElement": NO_TENSORS, "OptionalHasElement": NO_TENSORS,
    "AdamWOptimizer": SEQUENCES, "SGDOptimizerV2": SEQUENCES, "InplaceClipGradNorm": SEQUENCES,
    "AdamOptimizer": "replaced by AdamWOptimizer, and stands behind the step that is planned",
    "LambOptimizer": "CUDA alone; stands behind the step that is planned",
    "AdasumAllReduce": COLLECTIVE, "AllGather": COLLECTIVE, "AllReduce": COLLECTIVE, "AllToAll": COLLECTIVE,
    "NcclAllGather": COLLECTIVE, "NcclAllReduce": COLLECTIVE, "NcclReduceScatter": COLLECTIVE, "MegatronF": COLLECTIVE,
    "MegatronG": COLLECTIVE, "Send": COLLECTIVE, "Recv": COLLECTIVE,
    "ATen": FOREIGN, "PythonOp": FOREIGN, "PythonOpGrad": FOREIGN, "YieldOp": FOREIGN,
    "RecordEvent": "orders threads of pipelines", "WaitEvent": "orders threads of pipelines",
    "Constant": "no node at run time: the session makes an initializer of it",
    "DivGrad": "no node at run time: taken apart before anything is planned",
    "Grad": "no node at run time", "Group": "only waits for its inputs",
    "RMSNormalization": "newer than this version of the runtime",
    "BatchScale": "no kernel of it is in the packages for the CPU", "MaxPoolGrad": "crashes where nothing declares its sizes",
    "NegativeLogLikelihoodLossInternal": "a function of which the body is refused in these operator sets",
    "InvertibleLayerNormalizationGrad": "refused where nothing declares its outputs", "ReduceAllL2": "refused where nothing declares its output",
    "Dropout": "the standard's is measured; that of com.microsoft is another name", "SimplifiedLayerNormalization": "likewise",
    "AveragePoolGrad": "its kernel crashes in 1.19.2",
    "InPlaceAccumulator": "replaced by InPlaceAccumulatorV2, and updates its input",
}


def without_kernel():
    """Cases that the runtime has to refuse, since the CPU has no kernel."""
    rows, image = x(64, 32, 128), x(2, 16, 64, 64)
    yield ms("BiasSoftmax", x(8, 64, 128), x(8, 1, 128), axis=2, is_inner_broadcast=0)
    yield ms("SparseSoftmaxCrossEntropy", x(512, 1000), like("int64", 512), outputs=2)
    yield ms("SparseSoftmaxCrossEntropyGrad", x(), x(512, 1000), like("int64", 512))
    yield ms("BiasSplitGelu", x(2, 64, 2560), x(2560))
    yield ms("BitmaskDropoutGrad", rows, like("uint32", 8192), const(0.5, "float"), const(True, "bool"))
    yield ms("BitmaskDropout", rows, outputs=2)
    yield ms("BitmaskBiasDropout", rows, x(128), outputs=2)
    yield ms("BiasDropout", rows, x(128), outputs=2)
    yield op("ConvTransposeGrad", x(2, 8, 10, 10), x(2, 4, 8, 8), x(4, 8, 3, 3), domain="com.microsoft", outputs=3)
    yield ms("FlattenAndUnpad", rows, like("int64", 100), outputs=2)
    yield ms("GroupNorm", x(2, 8, 8, 320), x(320), x(320), groups=32, activation=0)
    yield ms("IsAllFinite", rows, rows)
    yield ms("IsFinite", rows)
    yield ms("MixedPrecisionScale", const(1.0, "float"), rows, to=1)
    yield ms("PadAndUnflatten", x(100, 128), like("int64", 100), const([4, 50]))
    yield ms("ResizeGrad", x(2, 16, 128, 128), image, None, const([1, 1, 2, 2], "float"), mode="linear")
    yield ms("ScaledSum", rows, rows, scale_0=1.0, scale_1=2.0)
    yield ms("TrainableDropout", rows, const(0.5, "float"), outputs=2)
    yield ms("TrainableDropoutGrad", rows, like("bool", 64, 32, 128), const(0.5, "float"))


def more():
    rows, image = x(64, 32, 128), x(2, 16, 64, 64)
    half = lambda *shape: like("float16", *shape)
    # No case among those of measure_operators.py.
    for name in "BitwiseAnd BitwiseOr BitwiseXor".split():
        yield op(name, like("int32", 64, 2048), like("int32", 2048), opset=18)
    yield op("BitwiseNot", like("int32", 64, 2048), opset=18)
    yield op("BitShift", like("uint8", 512, 2048), like("uint8", 2048), direction="LEFT")
    for name in "BlackmanWindow HammingWindow HannWindow".split():
        yield op(name, const(100000), opset=17)
    yield op("CenterCropPad", x(64, 100, 128), const([50, 120]), axes=[1, 2], opset=18)
    yield op("Compress", rows, like("bool", 64), axis=0)
    yield op("NonZero", rows)
    yield op("NonZero", like("bool", 512, 1024))
    yield op("Unique", x(64, 1024))
    yield op("QuantizeLinear", rows, const(0.1, "float"), const(0, "uint8"))
    yield op("DequantizeLinear", like("uint8", 64, 32, 128), const(0.1, "float"), const(0, "uint8"))
    yield op("Det", x(2, 256, 256))
    yield ms("Inverse", x(2, 256, 256))
    yield ms("FakeQuant", rows, const(0.1, "float"), const(0.0, "float"), outputs=2)
    yield ms("FakeQuantGrad", rows, like("bool", 64, 32, 128))
    yield ms("FusedConv", x(2, 64, 56, 56), x(64, 64, 3, 3), x(64), pads=[1] * 4, activation="Relu")
    yield ms("FusedConv", x(2, 64, 56, 56), x(64, 1, 1, 1), x(64), group=64, activation="Relu")
    yield ms("FusedGemm", x(256, 512), x(384, 512), x(384), transB=1, activation="Relu")
    yield op("GridSample", image, x(2, 64, 64, 2), opset=16)
    yield op("MatMulInteger", like("uint8", 256, 512), like("uint8", 512, 384))
    yield ms("MaxpoolWithMask", image, like("int32", 2, 1, 64, 64), kernel_shape=[3, 3])
    yield op("RandomNormal", shape=[64, 2048])
    for axes, keep in (([0], 1), ([1], 0), ([0, 1], 1), ([2], 1)):
        yield ms("ReduceSumTraining", rows, const(axes), keepdims=keep)
    yield ms("ReduceSumTraining", rows, const([]), keepdims=1, noop_with_empty_axes=1)
    yield op("ReverseSequence", x(32, 64, 128), const([32] * 64))
    yield op("Scatter", rows, like("int64", 64, 8, 128), x(64, 8, 128), axis=1, opset=10)
    yield ms("ShrunkenGather", x(1000, 256), like("int64", 64))
    yield ms("SkipSimplifiedLayerNormalization", rows, rows, x(128))
    yield ms("SkipSimplifiedLayerNormalization", rows, rows, x(128), outputs=[1, 0, 0, 1])
    yield ms("SoftmaxCrossEntropy", x(512, 1000), x(512, 1000), outputs=2)
    yield ms("SoftmaxCrossEntropyGrad", x(), x(512, 1000), x(512, 1000))
    yield ms("TransposeMatMul", x(8, 64, 96), x(8, 64, 48), transA=1)
    yield ms("ZeroGradient", rows, x(1))
    yield ms("Trilu", x(512, 512))
    # SimplifiedLayerNormalization is in the standard's domain; other names of it are refused.

    # Convolutions in one, two and three dimensions.
    for rank in (1, 2, 3):
        size, kernel = {1: (2048, 5), 2: (24, 3), 3: (10, 3)}[rank]
        for attributes in ({}, {"pads": [1] * 2 * rank}, {"strides": [2] * rank}, {"dilations": [2] * rank}, {"group": 4},
                           {"group": 4, "strides": [2] * rank, "pads": [1] * 2 * rank}, {"group": 16}):
            group, data = attributes.get("group", 1), x(3, 16, *[size] * rank)
            weights = x(32, 16 // group, *[kernel] * rank)
            forward = op("Conv", data, weights, **attributes)
            yield forward
            dilation, stride = attributes.get("dilations", [1])[0], attributes.get("strides", [1])[0]
            pads = 2 * attributes.get("pads", [0])[0]
            out = (size + pads - dilation * (kernel - 1) - 1) // stride + 1
            dy = x(3, 32, *[out] * rank)
            if rank == 2 or group == 1:  # the kernel crashes otherwise
                yield ms("ConvGrad", dy, data, weights, outputs=3, **attributes)
                yield ms("ConvGrad", dy, data, weights, outputs=[1, 0], **attributes)
            yield ms("ConvGrad", dy, data, weights, outputs=[0, 1], **attributes)
        for attributes in ({}, {"pads": [1] * 2 * rank}, {"strides": [2] * rank}, {"dilations": [2] * rank}, {"group": 4},
                           {"strides": [2] * rank, "pads": [1] * 2 * rank, "output_padding": [1] * rank}, {"group": 16}):
            weights = x(16, 32 // attributes.get("group", 1), *[kernel] * rank)
            yield op("ConvTranspose", x(3, 16, *[size] * rank), weights, **attributes)
            yield op("ConvTranspose", x(3, 16, *[size] * rank), weights, x(32), **attributes)
    yield op("Conv", x(1, 64, 128, 128), x(64, 64, 1, 1), strides=[2, 2])
    yield ms("ConvGrad", x(2, 128, 28, 28), x(2, 64, 56, 56), x(128, 64, 1, 1), outputs=3, strides=[2, 2])
    for rank, size in ((1, 4096), (3, 16)):
        pooled = x(4, 16, *[size] * rank)
        yield op("MaxPool", pooled, outputs=2, kernel_shape=[2] * rank, strides=[2] * rank)
        yield op("AveragePool", pooled, kernel_shape=[3] * rank, strides=[2] * rank, pads=[1] * 2 * rank)
        yield op("GlobalAveragePool", pooled)
        channels = [x(16)] * 4
        yield ms("BatchNormInternal", pooled, *channels, outputs=5)
        yield ms("BatchNormalizationGrad", pooled, pooled, x(16), x(16), x(16), outputs=3, epsilon=1e-5)
        yield op("InstanceNormalization", pooled, x(16), x(16))
    yield op("Resize", x(2, 8, 12, 12, 12), None, const([1, 1, 2, 2, 2], "float"), mode="linear")
    yield op("Resize", x(2, 8, 512), None, const([1, 1, 2], "float"), mode="linear")
    yield op("Resize", image, None, const([1, 1, 2, 2], "float"), mode="cubic")
    yield op("Resize", image, None, const([1, 1, 0.5, 0.5], "float"), mode="linear", antialias=1, opset=18)
    yield op("Resize", image, None, const([1, 1, 2, 2], "float"), mode="nearest")

    # Types that kernels treat otherwise.
    for to, name in ((10, half), (11, x), (7, x), (9, x)):
        yield op("Cast", name(64, 32, 128) if name is x else x(64, 32, 128), to=to)
    yield op("Cast", half(64, 32, 128), to=1)
    yield op("Cast", half(64, 32, 128), to=7)
    yield op("Cast", like("int64", 64, 32, 128), to=1)
    yield op("Cast", like("bool", 64, 32, 128), to=1)
    for name in "Transpose Identity".split():
        yield op(name, half(64, 32, 128))
    yield op("Concat", half(64, 32, 128), half(64, 8, 128), axis=1)
    yield op("Where", like("bool", 64, 32, 128), like("int64", 64, 32, 128), like("int64", 128))
    yield op("Where", like("bool", 64, 1, 128), x(), x(64, 32, 1))
    yield op("Where", like("bool", 64, 1, 128), rows, x(64, 32, 1))
    for name in "Add Mul Sub Equal Less".split():
        yield op(name, like("int64", 64, 32, 128), like("int64", 128))
        yield op(name, like("double", 64, 32, 128), like("double", 1))
    yield op("Div", like("double", 64, 32, 128), like("double", 1))
    for second in (const(2.0, "float"), const(3.0, "float"), const(0.5, "float"), x(128), x(64, 32, 128), like("int64", 1)):
        yield op("Pow", rows, second)
    yield op("Sum", x(64, 32, 128), x(32, 128), x(128), x(64, 1, 1))
    yield op("ReduceSum", like("double", 64, 32, 128), const([1]))
    yield op("ReduceMean", like("double", 64, 32, 128), axes=[0, 2])
    yield op("ReduceSum", x(8, 16, 12, 20), const([0, 2, 3]), keepdims=0)
    yield op("ReduceSum", x(8, 16, 12, 20), const([1]))
    yield op("ReduceMax", x(8, 16, 12, 20), axes=[1, 3])
    for axes in ([1], [0, 2], [-1]):
        yield op("ReduceMean", rows, const(axes), opset=18)
        yield op("ReduceL2", rows, const(axes), opset=18)
    for axis in (0, 1, 2):
        yield op("CumSum", rows, const(axis), reverse=1)
        yield op("TopK", rows, const([20]), outputs=2, axis=axis)
    yield op("TopK", x(8, 100000), const([1000]), outputs=2)
    yield op("OneHot", like("int64", 4096), const(64), const([0, 1]), axis=0)
    yield op("ScatterND", rows, like("int64", 64, 16, 2), x(64, 16, 128), reduction="add", opset=16)
    yield op("ScatterElements", rows, like("int64", 64, 8, 128), x(64, 8, 128), axis=1, reduction="add", opset=18)
    yield op("Gather", rows, like("int32", 20000), axis=1)
    yield ms("GatherGrad", const([64, 32, 128]), like("int64", 500), x(64, 500, 128), axis=1)
    yield ms("GatherGrad", const([64, 32, 128]), like("int32", 500), x(64, 32, 500), axis=2)
    yield ms("GatherNDGrad", const([64, 32, 128]), like("int64", 64, 10, 1), x(64, 10, 128), batch_dims=1)

    # Products.
    yield op("MatMul", x(64, 1, 128), x(128, 64))
    yield op("MatMul", x(64, 256, 512), x(512, 1))
    yield op("MatMul", x(2, 12, 64, 32), x(2, 1, 32, 96))
    yield op("MatMul", x(2, 1, 64, 32), x(2, 12, 32, 96))
    yield op("MatMul", like("double", 256, 512), like("double", 512, 384))
    yield op("MatMul", x(1, 4096), x(4096, 4096))
    yield ms("FusedMatMul", x(2, 12, 64, 32), x(2, 12, 96, 32), transB=1, alpha=0.125)
    yield ms("FusedMatMul", x(64, 256, 128), x(64, 256, 96), transA=1)
    for trans in ({}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}):
        a = (512, 256) if trans.get("transA") else (256, 512)
        b = (384, 512) if trans.get("transB") else (512, 384)
        yield op("Gemm", x(*a), x(*b), **trans)
        yield op("Gemm", x(*a), x(*b), x(1, 384), **trans)
        yield op("Gemm", x(*a), x(*b), x(256, 384), **trans)
    for equation, shapes in (
        ("bnd,bmd->bnm", ((4, 64, 32), (4, 96, 32))), ("bhnm,bmhd->bnhd", ((2, 4, 64, 96), (2, 96, 4, 32))),
        ("bnhd,bmhd->bhnm", ((2, 64, 4, 32), (2, 96, 4, 32))), ("ij,jk->ik", ((256, 512), (512, 384))), ("bi,bi->b", ((512, 256),) * 2),
        ("bi,oi->bo", ((128, 256), (512, 256))), ("ncwh,vw->ncvh", ((4, 16, 32, 24), (32, 32))), ("bij->bji", ((8, 64, 96),)),
        ("ij->i", ((256, 512),)), ("ij->", ((256, 512),)), ("ii->i", ((512, 512),)),
    ):
        yield op("Einsum", *[x(*shape) for shape in shapes], equation=equation)

    # Recurrent layers in all forms.
    for hidden, steps, batch, width in ((96, 20, 16, 64), (32, 50, 4, 200)):
        for name, gates, outputs in (("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3)):
            for directions, direction in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
                data = (x(steps, batch, width), x(directions, gates * hidden, width), x(directions, gates * hidden, hidden))
                bias, state = x(directions, 2 * gates * hidden), x(directions, batch, hidden)
                common = {"hidden_size": hidden, "direction": direction}
                states = (state, state) if name == "LSTM" else (state,)
                yield op(name, *data, bias, None, *states, outputs=outputs, **common)
                yield op(name, *data, bias, const([steps] * batch, "int32"), *states, outputs=outputs, **common)
                yield op(name, *data, outputs=[1], **common)
                if name == "GRU":
                    yield op(name, *data, bias, None, *states, outputs=outputs, linear_before_reset=1, **common)
                if name != "RNN" and directions == 1 and direction == "forward":
                    training = {"GRU": 3, "LSTM": 5}[name]
                    more_attributes = dict(common, linear_before_reset=1) if name == "GRU" else common
                    yield ms(name + "Training", *data, bias, None, *states, outputs=training, **more_attributes)
                    yield ms(name + "Training", *data, outputs=training, **more_attributes)
                    yield ms(name + "Training", *data, bias, outputs=training, **common)
                    yield ms(name + "Training", *data, outputs=[1, 0, 1] if name == "GRU" else [1, 0, 0, 1, 1], **common)
                    every, gated = x(steps, 1, batch, hidden), x(steps, 1, batch, gates * hidden)
                    if name == "LSTM":
                        inputs = (*data, None, state, state, every, every, gated, every, state, state)
                        yield ms("LSTMGrad", *inputs, outputs=7, hidden_size=hidden)
                        yield ms("LSTMGrad", *inputs, outputs=4, hidden_size=hidden)
                        yield ms("LSTMGrad", *data, None, None, None, *inputs[6:], outputs=4, hidden_size=hidden)
                    else:
                        inputs = (*data, bias, None, state, every, gated, every, state)
                        yield ms("GRUGrad", *inputs, outputs=5, hidden_size=hidden, linear_before_reset=1)
                        yield ms("GRUGrad", *inputs, outputs=4, hidden_size=hidden)
                        yield ms("GRUGrad", *data, bias, None, None, *inputs[6:], outputs=4, hidden_size=hidden)

    # Normalizations and losses.
    for shape, axis in (((8, 16, 32, 32), 1), ((8, 16, 32, 32), -1), ((512, 768), -1), ((4, 64, 768), 2)):
        at = axis % len(shape)
        scale, stats = x(*shape[at:]), x(*shape[:at], *[1] * (len(shape) - at))
        yield op("LayerNormalization", x(*shape), scale, scale, outputs=3, axis=axis, opset=17)
        yield ms("LayerNormalizationGrad", x(*shape), x(*shape), scale, stats, stats, outputs=3, axis=axis)
        yield op("Softmax", x(*shape), axis=axis)
        yield ms("SoftmaxGrad_13", x(*shape), x(*shape), axis=axis)
    for shape in ((64, 10), (2, 5, 64), (2, 5, 16, 16, 16)):
        labels = like("int64", shape[0], *shape[2:])
        for reduction in ("mean", "none"):
            yield op("SoftmaxCrossEntropyLoss", x(*shape), labels, x(shape[1]), outputs=2, reduction=reduction, ignore_index=1)
        yield ms("SoftmaxCrossEntropyLossInternal", x(*shape), labels, None, const(-100), outputs=2, reduction="sum")
        yield ms("SoftmaxCrossEntropyLossGrad", x(), x(*shape), labels, x(shape[1]), reduction="mean")
    for kind in ("double",):
        for name in "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg".split():
            yield op(name, like(kind, 64, 32, 128))
    # Movement.
    for perm in ([0, 2, 1], [2, 1, 0], [1, 2, 0]):
        yield op("Transpose", rows, perm=perm)
    yield op("Transpose", x(2, 16, 3, 64, 8), perm=[2, 0, 3, 1, 4])
    yield op("Tile", x(64, 1, 128), const([1, 32, 1]))
    yield op("Expand", x(64, 32, 1), const([64, 32, 128]))
    yield op("Pad", image, const([0, 0, 2, 2, 0, 0, 2, 2]), mode="edge")
    yield op("Split", rows, axis=0, outputs=2)
    yield op("Slice", rows, const([0]), const([128]), const([2]), const([2]))
    yield ms("SliceGrad", x(64, 32, 64), const([64, 32, 128]), const([0]), const([128]), const([2]), const([2]))
    yield ms("DropoutGrad", rows, like("bool", 64, 32, 128))


def tried(case):
    """What the runtime did with the case, in a process that may crash; (result, None) or (None, why not)."""
    code = "import sys, json; import measure_workspaces as m; m.one(json.loads(sys.stdin.read()))"
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(case), capture_output=True, text=True,
                          cwd=os.path.dirname(os.path.abspath(__file__)))
    lines = done.stdout.strip().splitlines()
    if not lines:
        return None, "crashed (%s)" % done.returncode
    answer = json.loads(lines[-1])
    return answer.get("result"), answer.get("problem")


def one(case):
    try:
        result = single.run(case)
        single.THREADS = 4
        four = single.run(case)["workspace"]
        if four > result["workspace"] + BOOKKEEPING:
            result["workspace_4"] = four
        print(json.dumps({"result": result}))
    except Exception as problem:  # the runtime's own exceptions have no common base
        print(json.dumps({"problem": str(problem).splitlines()[0]}))


def known():
    done = subprocess.run(["cargo", "run", "-q", "-p", "ckpt-passes", "--example", "operators"], capture_output=True, text=True,
                          check=True, cwd=ROOT)
    return {tuple(line.split("\t")) for line in done.stdout.splitlines()}


def main():
    from concurrent.futures import ThreadPoolExecutor

    faults, results, absent = [], [], []
    cases = list(more())
    with ThreadPoolExecutor(2) as pool:
        for case, (result, problem) in zip(cases, pool.map(tried, cases)):
            if result:
                results.append(result)
            else:
                faults.append("%s is refused: %s" % (case["op"], problem))
        refused = list(without_kernel())
        for case, (result, problem) in zip(refused, pool.map(tried, refused)):
            if result or not any(text in problem for text in ("NOT_IMPLEMENTED", "is not a registered function/op")):
                faults.append("%s was to have no kernel: %s" % (case["op"], problem))
            else:
                absent.append([case["domain"], case["op"]])
    with open(os.path.join(ROOT, "testdata", "operators.json")) as file:
        measured = {(case["domain"], case["op"]) for case in json.load(file) + results}
    for domain, name in sorted(known() - measured - {tuple(pair) for pair in absent}):
        if name not in UNMEASURED:
            faults.append("%s of %r is not measured, and no reason is given" % (name, domain))
    record = {"cases": results, "no_kernel": absent, "unmeasured": UNMEASURED}
    if "--check" in sys.argv:
        with open(TARGET) as file:
            recorded = json.load(file)["cases"]
        if len(recorded) != len(results):
            faults.append("%d cases are recorded, %d ran" % (len(recorded), len(results)))
        for old, new in zip(recorded, results):
            if abs(old["workspace"] - new["workspace"]) > BOOKKEEPING:
                faults.append("%s takes %d, %d is recorded" % (new["op"], new["workspace"], old["workspace"]))
    else:
        with open(TARGET, "w") as file:
            lists = ",\n".join(json.dumps(result) for result in results)
            rest = ",\n".join('"%s": %s' % (key, json.dumps(record[key])) for key in ("no_kernel", "unmeasured"))
            file.write('{"cases": [\n%s\n],\n%s}\n' % (lists, rest))
    print("\n".join(faults))
    print("%d cases, %d without a kernel, %d with a reason, %d faults" % (len(results), len(absent), len(UNMEASURED), len(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
