"""Which of ONNX Runtime's CUDA kernels write their result to what they read.

Usage: gpu_in_place.py > testdata/gpu_in_place.json

Each operator reads what another node computed and nobody else reads, and its result is read by a third node. If that takes memory
twice, not three times, the operator's result is where its input was. Prints, by operator, whether it is; only operators with a kernel of
one input that counts.
"""

import json
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from counters import CudaMemory

SHAPE = (64, 64, 8, 8)
BYTES = 4 * 64 * 64 * 64
ALONE = ("Abs Neg Exp Log Sqrt Reciprocal Erf Sin Cos Floor Ceil Sign Round Relu Sigmoid Tanh Elu Selu LeakyRelu HardSigmoid Softplus "
         "Softsign ThresholdedRelu Shrink HardSwish Celu Gelu Softmax LogSoftmax Trilu").split()
CONTRIB = ["Gelu", "FastGelu", "QuickGelu"]
PAIRS = "Add Sub Mul Div Pow Max Min Sum".split()
ONE = np.ones((), np.float32)
# Operator, constants behind the first input, attributes, outputs.
OTHERS = [
    ("Clip", [-ONE, ONE], {}, 1),
    ("Cast", [], {"to": TensorProto.FLOAT}, 1),
    ("Dropout", [ONE / 2, np.array(True)], {}, 2),
    ("LayerNormalization", [np.ones(8, np.float32)] * 2, {}, 1),
    ("BatchNormalization", [np.ones(64, np.float32)] * 4, {}, 1),
    ("ScatterND", [np.zeros((1, 1), np.int64), np.ones((1, 64, 8, 8), np.float32)], {"reduction": "add"}, 1),
    ("ScatterElements", [np.zeros((1, 1, 1, 1), np.int64), np.ones((1, 1, 1, 1), np.float32)], {"reduction": "add"}, 1),
]


def is_in_place(memory, operator, constants=(), domain="", outputs=1, **attributes):
    names = [f"constant_{place}" for place in range(len(constants))]
    nodes = [helper.make_node("Neg", ["x"], ["read"]),
             helper.make_node(operator, ["read", *names], ["written", "mask"][:outputs], domain=domain, **attributes),
             helper.make_node("Transpose", ["written"], ["y"], perm=[3, 2, 1, 0])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", SHAPE), ("y", SHAPE[::-1])))
    graph = helper.make_graph(nodes, "one", [x], [y], [numpy_helper.from_array(np.asarray(a), name) for name, a in zip(names, constants)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)], ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.enable_mem_pattern = options.enable_mem_reuse = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[("CUDAExecutionProvider", memory.provider_options())])
    bound = session.io_binding()
    bound.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.ones(SHAPE, np.float32), "cuda", 0))
    bound.bind_output("y", "cuda")
    begin = len(memory.events)
    session.run_with_iobinding(bound)
    return sum(size >= BYTES for size, _ in memory.events[begin:]) == 2


def main():
    memory = CudaMemory()
    cases = [(name, [], "", {}, 1) for name in ALONE] + [(name, [], "com.microsoft", {}, 1) for name in CONTRIB]
    cases += [(name, [ONE], "", {}, 1) for name in PAIRS] + [(name, constants, "", said, outputs) for name, constants, said, outputs in OTHERS]
    found = {}
    for name, constants, domain, said, outputs in cases:
        found[f"{domain}.{name}" if domain else name] = is_in_place(memory, name, constants, domain, outputs, **said)
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
