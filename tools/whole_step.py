"""Trains with a graph that updates its weights itself, and with the same graph and the optimizer's kernel beside it.

Usage: whole_step.py run WHOLE --dim NAME=N ... --dump FILE.npz       new values over old ones, as ckpt_opt.ort.Step does it
       whole_step.py feed WHOLE --dim NAME=N ... --dump FILE.npz      new values beside the old ones, which they then replace
       whole_step.py kernel LOWERED --optimizer FILE|adamw|sgd ...    the lowered graph without an update, its gradients given to
                                                                      the kernel (ONNX Runtime 1.19.2 has it)
       whole_step.py compare A.npz B.npz [--tolerance T]              losses of all steps and the weights after the last

With the malloc counter preloaded `run` tells what a step takes beyond what was live before. All begin with the same weights, made
up from the names, and train on one made up batch. `compare` exits with 1 where losses or weights differ by more than T of themselves;
without a tolerance by a bit.
"""

import argparse
import gc
import importlib.machinery
import json
import sys
from unittest import mock

import numpy as np

ENDINGS = (".moment_1", ".moment_2")
KEY = "ckpt-opt.overwrites"
BUFFER, OUT = "_grad.accumulation.buffer", "_grad.accumulation.out"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["run", "feed", "kernel", "compare"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--inputs-of", metavar="MODEL", help="begin with the weights and the batch of MODEL")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--order", choices=["default", "priority"], default="default")
    parser.add_argument("--level", choices=["disable_all", "enable_all"], default="enable_all")
    parser.add_argument("--settings", choices=["default", "no-pattern", "lean"], default="default")
    parser.add_argument("--disable-optimizers", metavar="NAME;NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dump", metavar="FILE.npz")
    parser.add_argument("--tolerance", type=float)
    return parser.parse_args()


def session(path, args):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.log_severity_level = 3
    options.graph_optimization_level = {"disable_all": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
                                        "enable_all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}[args.level]
    options.execution_order = {"default": ort.ExecutionOrder.DEFAULT, "priority": ort.ExecutionOrder.PRIORITY_BASED}[args.order]
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = args.settings == "default"
    options.enable_mem_reuse = args.settings != "lean"
    if args.disable_optimizers:
        options.add_session_config_entry("optimization.disable_specified_optimizers", args.disable_optimizers)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def begin(path, args):
    """Weights and a batch: what the graph reads besides buffers, moments, and what a step is told."""
    import onnx
    from model_inputs import Inputs

    model = onnx.load(path, load_external_data=False)
    names = {info.name for info in model.graph.input}
    if KEY in {entry.key for entry in model.metadata_props}:
        over = json.loads(next(entry.value for entry in model.metadata_props if entry.key == KEY))
        weights = [name for name in over.values() if not name.endswith(ENDINGS)]
    else:
        over = {}
        weights = [name[: -len(BUFFER)] for name in names if name.endswith(BUFFER)]
    dims = {name: int(size) for name, _, size in (text.partition("=") for text in args.dim)}
    made = Inputs(model, dims).make()
    if args.inputs_of:
        others = Inputs(onnx.load(args.inputs_of, load_external_data=False), dims).make()
        made = {name: others.get(name, value) for name, value in made.items()}
    return made, sorted(weights), over


def whole(path, args):
    import onnxruntime as ort

    from counters import MallocCounter

    made, weights, over = begin(path, args)
    for name in made:
        if name.endswith(ENDINGS):
            made[name] = np.zeros_like(made[name])
    made["learning_rate"] = np.array([args.rate], np.float32)
    made = {name: value.copy() for name, value in made.items()}
    running = session(path, args)
    outputs = [info.name for info in running.get_outputs()]
    losses, peaks = [], []
    values = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in made.items()}
    counter = MallocCounter()
    for number in range(1, args.steps + 1):
        if "step" in values:
            values["step"] = ort.OrtValue.ortvalue_from_numpy(np.array([number], np.int64))
        if args.mode == "run":
            io = running.io_binding()
            for name, value in values.items():
                io.bind_ortvalue_input(name, value)
            for name in outputs:
                if name in over:
                    io.bind_ortvalue_output(name, values[over[name]])
                else:
                    io.bind_output(name)
            gc.collect()
            peaks.append(counter.during(lambda: running.run_with_iobinding(io)))
            results = dict(zip(outputs, io.get_outputs()))
        else:
            found = running.run_with_ort_values(outputs, values)
            results = dict(zip(outputs, found))
            for output, name in over.items():
                values[name] = results[output]
        losses.append([np.array(results[name].numpy()) for name in outputs if name not in over][0])
    # Copies: the memory goes with the session's values.
    return losses, {name: np.array(values[name].numpy()) for name in weights}, peaks


def kernel_model(optimizer, weights, shapes):
    """A graph that gives the gradients of all weights to the kernel; it writes to what it is fed."""
    import onnx
    from onnx import TensorProto, helper

    lists = ["weights", "gradients", "first", "second"] if optimizer["op"] == "AdamWOptimizer" else ["weights", "gradients"]
    inputs = [helper.make_tensor_value_info("rate", TensorProto.FLOAT, [1])]
    first = ["rate"]
    if optimizer["op"] == "AdamWOptimizer":
        inputs.append(helper.make_tensor_value_info("number", TensorProto.INT64, [1]))
        first.append("number")
    nodes = []
    for kind in lists:
        names = [f"{kind}.{name}" for name in weights]
        inputs += [helper.make_tensor_value_info(full, TensorProto.FLOAT, shapes[name]) for full, name in zip(names, weights)]
        nodes.append(helper.make_node("SequenceConstruct", names, [kind]))
    updated = ["new." + kind for kind in lists if kind != "gradients"]
    nodes.append(helper.make_node(optimizer["op"], first + lists, ["flag"] + updated, domain="com.microsoft",
                                  **optimizer["attributes"]))
    outputs = [helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])]
    for kind in lists:
        if kind == "gradients":
            continue
        for place, name in enumerate(weights):
            nodes.append(helper.make_node("Constant", [], [f"at.{kind}.{place}"], value_int=place))
            nodes.append(helper.make_node("SequenceAt", ["new." + kind, f"at.{kind}.{place}"], [f"out.{kind}.{name}"]))
            outputs.append(helper.make_tensor_value_info(f"out.{kind}.{name}", TensorProto.FLOAT, shapes[name]))
    graph = helper.make_graph(nodes, "update", inputs, outputs)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return model.SerializeToString()


def adamw_as_generated():
    """The attributes that artifacts.generate_artifacts writes: asked of the runtime itself, which imports PyTorch for other things."""
    torch = mock.MagicMock()
    torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    with mock.patch.dict(sys.modules, {"torch": torch}):
        from onnxruntime.training.onnxblock.optim.optim import AdamWOptimizer
    adamw = AdamWOptimizer()
    with mock.patch.object(adamw, "_build_optimizer_node") as build:
        adamw.build(*"abcdef")
    return build.call_args.args[3]


def described(text):
    """The kernel and its attributes."""
    import onnx

    if text == "sgd":
        return {"op": "SGDOptimizerV2", "attributes": {}}
    if text == "adamw":
        return {"op": "AdamWOptimizer", "attributes": adamw_as_generated()}
    for node in onnx.load(text).graph.node:
        if node.op_type in ("AdamWOptimizer", "SGDOptimizerV2"):
            attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            return {"op": node.op_type, "attributes": attributes}
    sys.exit(f"{text}: no AdamWOptimizer and no SGDOptimizerV2")


def beside(path, args):
    optimizer = described(args.optimizer)
    made, weights, _ = begin(path, args)
    running = session(path, args)
    outputs = [info.name for info in running.get_outputs()]
    made = {name: value.copy() for name, value in made.items()}
    for name in weights:
        made[name + BUFFER] = np.zeros_like(made[name + BUFFER])
    made["lazy_reset_grad"] = np.array([True])
    update = session(kernel_model(optimizer, weights, {name: made[name].shape for name in weights}), args)
    moments = {f"{kind}.{name}": np.zeros_like(made[name]) for kind in ("first", "second") for name in weights}
    losses = []
    for number in range(1, args.steps + 1):
        results = dict(zip(outputs, running.run(outputs, made)))
        losses.append([value for name, value in results.items() if not name.endswith(OUT)][0])
        fed = {"rate": np.array([args.rate], np.float32)}
        if optimizer["op"] == "AdamWOptimizer":
            fed["number"] = np.array([number], np.int64)
            fed.update(moments)
        for name in weights:
            fed[f"weights.{name}"], fed[f"gradients.{name}"] = made[name], results[name + OUT]
        found = dict(zip([one.name for one in update.get_outputs()], update.run(None, fed)))
        for name in weights:
            made[name] = found[f"out.weights.{name}"]
        for full in moments:
            if f"out.{full}" in found:
                moments[full] = found[f"out.{full}"]
    return losses, {name: made[name] for name in weights}, []


def compare(one, other, tolerance):
    with np.load(one) as one, np.load(other) as other:
        if sorted(one.files) != sorted(other.files):
            sys.exit("they have other weights")
        worst = {}
        for name in one.files:
            a, b = one[name], other[name]
            if tolerance is None:
                worst[name] = 0.0 if a.tobytes() == b.tobytes() else float(np.max(np.abs(a - b))) or 1e-45
            else:
                worst[name] = float(np.linalg.norm(np.float64(a) - b) / max(np.linalg.norm(np.float64(a)), 1e-30))
        moved = one["losses"].reshape(-1)
    name = max(worst, key=worst.get)
    print(f"{len(worst) - 1} weights, losses {moved[0]:.6g} .. {moved[-1]:.6g}; largest difference {worst[name]:.2g} ({name})")
    # A training that does not train would be equal to anything.
    sys.exit(worst[name] > (tolerance or 0.0) or not moved[-1] < moved[0])


def main():
    args = arguments()
    if args.mode == "compare":
        compare(*args.files, args.tolerance)
    losses, weights, peaks = (beside if args.mode == "kernel" else whole)(args.files[0], args)
    if args.dump:
        np.savez(args.dump, losses=np.array(losses), **{name.replace("/", "|"): value for name, value in weights.items()})
    known = [peak for peak in peaks if peak is not None]
    print(json.dumps({"first_loss": float(losses[0]), "last_loss": float(losses[-1]), "peak_bytes": max(known, default=None),
                      "peak_bytes_per_step": known}))


if __name__ == "__main__":
    main()
