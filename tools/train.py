"""Trains with an original training graph and with its rewritten form in onnxruntime.training.api, as a
program in use would: Module, Optimizer (AdamW) and CheckpointState, everything at its default.

Usage: train.py ORIGINAL REWRITTEN --dim NAME=N ... [--steps N]

Both start from the same parameters and are fed the same batches, a new one each step. Prints the losses.
Exit status 0 if they agree to nine digits, and the trained parameters to 1e-5, relative to their norm.
"""

import argparse
import os
import sys
import tempfile
import types

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi._pybind_state import save_checkpoint

from model_inputs import BUFFER_SUFFIX, Inputs

TOLERANCE = 1e-5


def training_api():
    """onnxruntime.training.api, without the package around it, whose __init__ wants PyTorch."""
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [os.path.join(os.path.dirname(onnxruntime.__file__), "training")]
    sys.modules.setdefault("onnxruntime.training", package)
    from onnxruntime.training import api

    return api


def adamw(path):
    """Writes the optimizer as a graph, as generate_artifacts does."""
    sequences = ["params", "gradients", "first_order_moments", "second_order_moments"]
    inputs = [helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]),
              helper.make_tensor_value_info("step", TensorProto.INT64, [1])]
    inputs += [helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in sequences]
    node = helper.make_node("AdamWOptimizer", [info.name for info in inputs], ["updated"], name="adamw",
                            domain="com.microsoft", alpha=0.9, beta=0.999, epsilon=1e-6, weight_decay=0.0,
                            correct_bias=1, adam_mode=1)
    outputs = [helper.make_tensor_value_info("updated", TensorProto.BOOL, [1])]
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "adamw", inputs, outputs), opset_imports=opsets, ir_version=8), path)


def batches(inputs, steps, user):
    """For each step what the graph reads besides its parameters, by name."""
    first = inputs.make()
    random = np.random.default_rng(0)
    for step in range(steps):
        # The same rows, of another size, with other labels.
        scale = np.float32(random.uniform(0.5, 1.5))
        yield [first[name] * scale if first[name].dtype.kind == "f" else np.roll(first[name], step) for name in user]


def train(path, like, dims, steps, folder):
    """The losses, and the trained parameters in one array; fed with what the graph `like` would be fed,
    since a rewritten graph declares more shapes, and the labels' range is looked up there."""
    api = training_api()
    inputs = Inputs(onnx.load(like), dims)
    made = inputs.make()
    parameters = [name[:-len("_grad.accumulation.buffer")] for name in made if name.endswith(BUFFER_SUFFIX)]
    reserved = set(parameters) | inputs.buffers | {"lazy_reset_grad"}
    user = [name for name in made if name not in reserved]
    checkpoint, optimizer = os.path.join(folder, "checkpoint"), os.path.join(folder, "optimizer.onnx")
    weights = [numpy_helper.from_array(made[name], name).SerializeToString() for name in parameters]
    save_checkpoint(weights, [], checkpoint, False)
    adamw(optimizer)
    state = api.CheckpointState.load_checkpoint(checkpoint)
    module = api.Module(path, state, device="cpu")
    optimizer = api.Optimizer(optimizer, module)
    losses = []
    module.train()
    for batch in batches(inputs, steps, user):
        losses.append(float(module(*batch)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, module.get_contiguous_parameters(trainable_only=True).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("rewritten")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    dims = {name: int(size) for name, _, size in (dim.partition("=") for dim in args.dim)}
    results = []
    for path in (args.original, args.rewritten):
        with tempfile.TemporaryDirectory() as folder:
            results.append(train(path, args.original, dims, args.steps, folder))
    (losses, before), (other, after) = results
    difference = float(np.linalg.norm(before - after) / np.linalg.norm(before))
    equal = [f"{a:.9g}" == f"{b:.9g}" for a, b in zip(losses, other)]
    for step, (a, b) in enumerate(zip(losses, other)):
        print(f"step {step}: loss {a:.9g} and {b:.9g}")
    print(f"parameters differ by {difference:.1e}")
    return 0 if all(equal) and difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
