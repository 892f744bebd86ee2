"""Runs training steps of one ONNX graph in this process and prints what they took, as JSON.

One process makes one measurement: the runtime keeps its CPU provider, and so its allocator, for the
life of the process. `measure.py` starts such processes with the malloc counter preloaded; without it
the peak is null.

The peak is what the runtime allocates during a step beyond what was live before it: the session and
everything the caller feeds were made before, the outputs are allocated by the step.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import os
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort

import measure
from counters import CudaMemory, MallocCounter, Uncounted
from model_inputs import Inputs

RANDOM_SEED_TYPES = {
    "Dropout": int,
    "BiasDropout": int,
    "BitmaskDropout": int,
    "BitmaskBiasDropout": int,
    "RandomNormal": float,
    "RandomNormalLike": float,
    "RandomUniform": float,
    "RandomUniformLike": float,
    "Multinomial": float,
    "Bernoulli": float,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--order", choices=["default", "priority", "memory-efficient"], default="default")
    parser.add_argument("--level", choices=["disable_all", "basic", "extended", "enable_all"], default="disable_all")
    parser.add_argument("--settings", choices=["lean", "no-pattern", "pattern", "default"], default="lean",
                        help="default: nothing changed; lean: no buffer reuse, no memory pattern, no arena; "
                        "no-pattern: no memory pattern, no arena; pattern: no buffer reuse, no arena")
    parser.add_argument("--no-arena", action="store_true", help="no arena with --settings default either")
    parser.add_argument("--growth", choices=["powers-of-two", "as-requested"],
                        help="the arena's extend strategy, with --settings default")
    parser.add_argument("--inputs-of", metavar="MODEL", help="feed what would be fed to MODEL: a rewritten graph declares "
                        "more shapes, from which contents are derived")
    parser.add_argument("--caller-outputs", metavar="SUFFIX", help="outputs whose names end so are the caller's memory, "
                        "made before the step: what is accumulated, where no kernel writes to inputs")
    parser.add_argument("--disable-optimizers", metavar="NAME;NAME", help="optimizers of the runtime that are switched off")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seed", type=int, help="give random nodes that have no seed one made from this and their "
                        "first output's name; without it they keep the runtime's")
    parser.add_argument("--expose-statistics", action="store_true",
                        help="feed running means and variances as inputs, so that the step's updates can be read")
    parser.add_argument("--profile", metavar="FILE", help="write the executed nodes, in order, with their times")
    parser.add_argument("--dump", metavar="FILE.npz", help="write every output and changed input")
    parser.add_argument("--allocations", metavar="FILE", help="write what each step took of a GPU's memory and returned, in order: sizes "
                        "(below zero where returned) and addresses")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--deterministic", action="store_true", help="on a GPU, kernels that give the same bits each time: some take other "
                        "memory then, and longer; on the CPU they are always asked for")
    parser.add_argument("--provider-options", type=json.loads, default={}, metavar="JSON",
                        help="what the device's provider is told, by the names of onnxruntime")
    return parser.parse_args()


def binding(text):
    name, _, value = text.partition("=")
    return name, int(value)


def seed_random_nodes(model, seed):
    """Both graphs of a comparison draw the same numbers: a rewritten graph's nodes have other
    indices, and unseeded nodes seed themselves from their index."""
    for node in model.graph.node:
        kind = RANDOM_SEED_TYPES.get(node.op_type)
        if kind and not any(attribute.name == "seed" for attribute in node.attribute):
            digest = hashlib.sha256(f"{seed} {node.output[0]}".encode()).digest()
            node.attribute.append(onnx.helper.make_attribute("seed", kind(int.from_bytes(digest[:3], "little"))))


def expose_statistics(model, folder):
    """Turns the running statistics from initializers, which nobody can read after a step, into
    graph inputs. The runtime updates them in place either way. `folder` is the model's."""
    names = set()
    for node in model.graph.node:
        if node.op_type == "BatchNormInternal":
            names.update(node.input[3:5])
    lifted = {}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name in names]:
        lifted[tensor.name] = onnx.numpy_helper.to_array(tensor, folder).copy()
        if not any(info.name == tensor.name for info in model.graph.input):
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    return lifted


def session_options(args, profile_prefix):
    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.use_deterministic_compute = args.device == "cpu" or args.deterministic
    options.graph_optimization_level = {
        "disable_all": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "enable_all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }[args.level]
    options.execution_order = {
        "default": ort.ExecutionOrder.DEFAULT,
        "priority": ort.ExecutionOrder.PRIORITY_BASED,
        "memory-efficient": ort.ExecutionOrder.MEMORY_EFFICIENT,
    }[args.order]
    options.enable_mem_reuse = args.settings in ("no-pattern", "default")
    options.enable_mem_pattern = args.settings in ("pattern", "default")
    if args.settings != "default" or args.no_arena:
        options.enable_cpu_mem_arena = False
    if args.disable_optimizers:
        options.add_session_config_entry("optimization.disable_specified_optimizers", args.disable_optimizers)
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    return options


def use_arena(options, growth):
    """The session takes an arena that grows so."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    strategy = {"powers-of-two": 0, "as-requested": 1}[growth]
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": strategy}))
    options.add_session_config_entry("session.use_env_allocators", "1")


class Device:
    """Where a graph runs: its provider, where memory is, and what counts it."""

    def __init__(self, name, provider_options, has_arena):
        self.memory = None
        self.name = name
        if name == "cpu":
            self.providers = ["CPUExecutionProvider"]
            self.counter = MallocCounter()
            return
        self.memory = CudaMemory()
        # What the arena holds can be seen from outside alone.
        self.counter = Uncounted() if has_arena else self.memory
        counted = {} if has_arena else self.memory.provider_options()
        self.providers = [("CUDAExecutionProvider", {**provider_options, **counted}), "CPUExecutionProvider"]

    def value(self, array):
        """The array in the device's memory."""
        return ort.OrtValue.ortvalue_from_numpy(array, self.name, 0)

    def used(self):
        """What is taken of a GPU's memory in all, in bytes."""
        return self.memory.used() if self.memory else None


def load_model(path, args):
    """The session's model (bytes, or the path where it has data in other files) and its inputs."""
    converted = path.endswith(".ort")
    if converted and not args.inputs_of:
        sys.exit("a model in the ORT format needs --inputs-of: the file that it was made of")
    model = onnx.load(args.inputs_of if converted else path, load_external_data=False)
    dims = dict(binding(text) for text in args.dim)
    if args.seed is not None:
        seed_random_nodes(model, args.seed)
    statistics = expose_statistics(model, os.path.dirname(path)) if args.expose_statistics else {}
    like = onnx.load(args.inputs_of, load_external_data=False) if args.inputs_of else model
    if args.inputs_of and args.expose_statistics:
        expose_statistics(like, os.path.dirname(args.inputs_of))
    arrays = Inputs(like, dims).make()
    arrays.update(statistics)
    changed = args.seed is not None or statistics
    outputs = [info.name for info in model.graph.output]
    nodes = [node.name or f"{node.op_type}#{index}" for index, node in enumerate(model.graph.node)]
    if changed and converted:
        sys.exit("a model in the ORT format runs as it is: without --seed and --expose-statistics")
    return (model.SerializeToString() if changed else path), arrays, outputs, nodes


def session_of(path, model, options, providers):
    """A session of the model at `path`, or of its bytes, changed. The runtime finds the files of tensors beside a file alone."""
    if isinstance(model, str) or path.endswith(".ort"):
        return ort.InferenceSession(model, options, providers=providers)
    with tempfile.TemporaryDirectory() as folder:
        if not measure.link_external_data(path, folder):
            return ort.InferenceSession(model, options, providers=providers)
        changed = os.path.join(folder, "changed.onnx")
        with open(changed, "wb") as file:
            file.write(model)
        return ort.InferenceSession(changed, options, providers=providers)


def executed(profile_path, nodes):
    """The executed nodes in order: position in the file (null for one that the runtime made),
    name, operator, microseconds."""
    with open(profile_path) as file:
        events = json.load(file)
    runs = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            index = int(event["args"]["node_index"])
            name = event["name"][: -len("_kernel_time")]
            known = index < len(nodes) and name in (nodes[index], nodes[index].replace("#", "_"))
            runs.append({"index": index if known else None, "name": nodes[index] if known else name,
                         "operator": event["args"]["op_name"], "time_us": event["dur"]})
    return runs


def bound_step(session, values, outputs, owned=(), device="cpu"):
    """A binding for one step; its outputs are allocated by the step, but for those that the caller has (by name)."""
    io = session.io_binding()
    for name, value in values.items():
        io.bind_ortvalue_input(name, value)
    for name in outputs:
        if name in owned:
            io.bind_ortvalue_output(name, owned[name])
        else:
            io.bind_output(name, device)
    return io


def caller_outputs(session, suffix, device):
    """Memory for the outputs whose names end so, where their shapes are numbers."""
    owned = {}
    for info in session.get_outputs():
        if suffix and info.name.endswith(suffix) and all(isinstance(size, int) for size in info.shape):
            dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}[info.type]
            owned[info.name] = device.value(np.zeros(info.shape, dtype))
    return owned


def digest(array):
    return hashlib.sha256(str(array.dtype).encode() + str(array.shape).encode() + array.tobytes()).hexdigest()


def main():
    args = arguments()
    model, arrays, output_names, nodes = load_model(args.model, args)
    scratch = tempfile.mkdtemp(prefix="ckpt-profile-") if args.profile else None
    options = session_options(args, os.path.join(scratch, "p") if scratch else None)
    if args.growth:
        use_arena(options, args.growth)
    device = Device(args.device, args.provider_options, args.settings == "default" and not args.no_arena)
    counter = device.counter
    before = {name: digest(array) for name, array in arrays.items()}
    values = {name: device.value(array) for name, array in arrays.items()}
    used = device.used()
    session = session_of(args.model, model, options, device.providers)
    if device.name == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        sys.exit("ONNX Runtime did not take its CUDA provider: what it lacks stands in its log, above")
    del model

    owned = caller_outputs(session, args.caller_outputs, device)

    peaks, kept, seconds, events = [], [], [], []
    for _ in range(args.steps):
        io = bound_step(session, values, output_names, owned, device.name)
        gc.collect()
        live = counter.live() if counter.live else None
        if device.memory:
            device.memory.events.clear()
        start = time.perf_counter()
        peaks.append(counter.during(lambda: session.run_with_iobinding(io)))
        seconds.append(time.perf_counter() - start)
        events += [list(device.memory.events)] if device.memory else []
        kept.append(None if live is None else counter.live() - live)
        results = {name: value.numpy() for name, value in zip(output_names, io.get_outputs())}
        del io
    for name, value in values.items():
        # Where the runtime wrote into what the caller owns: gradients, statistics.
        array = value.numpy()
        if digest(array) != before[name]:
            results[f"input:{name}"] = array

    if args.profile:
        runs = executed(session.end_profiling(), nodes)
        with open(args.profile, "w") as file:
            json.dump(runs, file)
        for name in os.listdir(scratch):
            os.remove(os.path.join(scratch, name))
        os.rmdir(scratch)
    if args.allocations:
        with open(args.allocations, "w") as file:
            json.dump(events, file)
    if args.dump:
        with open(args.dump, "wb") as file:
            np.savez(file, **{str(i): results[name] for i, name in enumerate(sorted(results))},
                     names=np.array(sorted(results)))
    json.dump({
        "peak_bytes": None if None in peaks else max(peaks),
        "peak_bytes_per_step": peaks,
        "kept_bytes_per_step": kept,  # by outputs, and by the arena
        "device_bytes": None if used is None else device.used() - used,  # of a GPU, for the session and its steps
        "caller_bytes": sum(array.nbytes for array in arrays.values()),
        "seconds_per_step": seconds,
        "digests": {name: digest(array) for name, array in sorted(results.items())},
        "not_finite": sorted(name for name, array in results.items()
                             if array.dtype.kind == "f" and not np.isfinite(array).all()),
    }, sys.stdout)
    print()


if __name__ == "__main__":
    main()
