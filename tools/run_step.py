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
    parser.add_argument("--settings", choices=["lean", "reuse", "pattern", "default"], default="lean",
                        help="default: nothing changed; lean: no buffer reuse, no memory pattern, no arena; "
                        "reuse, pattern: one of them without the other, no arena")
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


def expose_statistics(model):
    """Turns the running statistics from initializers, which nobody can read after a step, into
    graph inputs. The runtime updates them in place either way."""
    names = set()
    for node in model.graph.node:
        if node.op_type == "BatchNormInternal":
            names.update(node.input[3:5])
    lifted = {}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name in names]:
        lifted[tensor.name] = onnx.numpy_helper.to_array(tensor).copy()
        if not any(info.name == tensor.name for info in model.graph.input):
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    return lifted


def session_options(args, profile_prefix):
    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.use_deterministic_compute = True
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
    options.enable_mem_reuse = args.settings in ("reuse", "default")
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


class MallocCounter:
    """The preloaded counter's functions, if it is preloaded."""

    def __init__(self):
        try:
            library = ctypes.CDLL(None)
            self.live, self.peak = library.ckpt_live_bytes, library.ckpt_peak_bytes
            self.live.restype = self.peak.restype = ctypes.c_size_t
            self.reset_peak = library.ckpt_reset_peak
            self.reset_peak.restype = None
        except AttributeError:
            self.live = None

    def during(self, action):
        """The peak while `action` runs, in bytes beyond what was live before."""
        if self.live is None:
            action()
            return None
        self.reset_peak()
        before = self.live()
        action()
        return self.peak() - before


def load_model(path, args):
    """The session's model (bytes, or the path where it has data in other files) and its inputs."""
    converted = path.endswith(".ort")
    if converted and not args.inputs_of:
        sys.exit("a model in the ORT format needs --inputs-of: the file that it was made of")
    model = onnx.load(args.inputs_of if converted else path, load_external_data=False)
    dims = dict(binding(text) for text in args.dim)
    if args.seed is not None:
        seed_random_nodes(model, args.seed)
    statistics = expose_statistics(model) if args.expose_statistics else {}
    like = onnx.load(args.inputs_of, load_external_data=False) if args.inputs_of else model
    if args.inputs_of and args.expose_statistics:
        expose_statistics(like)
    arrays = Inputs(like, dims).make()
    arrays.update(statistics)
    changed = args.seed is not None or statistics
    outputs = [info.name for info in model.graph.output]
    nodes = [node.name or f"{node.op_type}#{index}" for index, node in enumerate(model.graph.node)]
    if changed and converted:
        sys.exit("a model in the ORT format runs as it is: without --seed and --expose-statistics")
    return (model.SerializeToString() if changed else path), arrays, outputs, nodes


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


def bound_step(session, values, outputs, owned=()):
    """A binding for one step; its outputs are allocated by the step, but for those that the caller has (by name)."""
    io = session.io_binding()
    for name, value in values.items():
        io.bind_ortvalue_input(name, value)
    for name in outputs:
        if name in owned:
            io.bind_ortvalue_output(name, owned[name])
        else:
            io.bind_output(name)
    return io


def caller_outputs(session, suffix):
    """Memory for the outputs whose names end so, where their shapes are numbers."""
    owned = {}
    for info in session.get_outputs():
        if suffix and info.name.endswith(suffix) and all(isinstance(size, int) for size in info.shape):
            dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}[info.type]
            owned[info.name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(info.shape, dtype))
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
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    del model
    before = {name: digest(array) for name, array in arrays.items()}
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}

    owned = caller_outputs(session, args.caller_outputs)

    counter, peaks, kept, seconds = MallocCounter(), [], [], []
    for _ in range(args.steps):
        io = bound_step(session, values, output_names, owned)
        gc.collect()
        live = counter.live() if counter.live else None
        start = time.perf_counter()
        peaks.append(counter.during(lambda: session.run_with_iobinding(io)))
        kept.append(None if live is None else counter.live() - live)
        seconds.append(time.perf_counter() - start)
        results = {name: value.numpy() for name, value in zip(output_names, io.get_outputs())}
        del io
    for name, array in arrays.items():
        # Where the runtime wrote into what the caller owns: gradients, statistics.
        if digest(array) != before[name]:
            results[f"input:{name}"] = array

    if args.profile:
        runs = executed(session.end_profiling(), nodes)
        with open(args.profile, "w") as file:
            json.dump(runs, file)
        for name in os.listdir(scratch):
            os.remove(os.path.join(scratch, name))
        os.rmdir(scratch)
    if args.dump:
        with open(args.dump, "wb") as file:
            np.savez(file, **{str(i): results[name] for i, name in enumerate(sorted(results))},
                     names=np.array(sorted(results)))
    json.dump({
        "peak_bytes": None if None in peaks else max(peaks),
        "peak_bytes_per_step": peaks,
        "kept_bytes_per_step": kept,  # by outputs, and by the arena
        "caller_bytes": sum(array.nbytes for array in arrays.values()),
        "seconds_per_step": seconds,
        "digests": {name: digest(array) for name, array in sorted(results.items())},
        "not_finite": sorted(name for name, array in results.items()
                             if array.dtype.kind == "f" and not np.isfinite(array).all()),
    }, sys.stdout)
    print()


if __name__ == "__main__":
    main()
