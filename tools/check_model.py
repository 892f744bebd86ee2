"""Runs an original training graph and its rewritten form and compares all that a step leaves behind.

Usage: check_model.py ORIGINAL REWRITTEN --dim NAME=N ... [--settings lean|no-pattern|default] [--runtime NAME] [--device cuda] [--json]

Compared are all graph outputs and everything that the step changed in memory of its caller: gradient
accumulation buffers, and running statistics, which are fed as inputs for this purpose. Unseeded random
nodes of both graphs get the same seeds. Each run is a process of its own, on one thread, or as many as REWRITTEN is planned for, where
it says so, without arena, in the settings that --settings names:

- at DISABLE_ALL both graphs run the same kernels: every bit must agree, in DEFAULT order and in
  PRIORITY_BASED, and the peaks are measured. Where an original's own results depend on the order
  (branches that share running statistics update them one after another), its DEFAULT order counts, and
  in PRIORITY_BASED order either will do;
- at ENABLE_ALL fusions may differ: each tensor must agree to TOLERANCE, relative to its norm. Where one does not, ORIGINAL is compared
  with itself: a tensor that has few digits in common at DISABLE_ALL and at ENABLE_ALL (a sum of large numbers that is nearly zero, say)
  may differ SEVERAL times as much and counts as "level-dependent".

Both are run without the optimizers that REWRITTEN wants switched off (the session_config_entries of its metadata), and ORIGINAL
besides without the one that computes in blocks of channels, with other bits: what is rewritten has nodes that keep it from that.

With --runtime stock both are run by a Python of its own (--python, else .venv-stock of `setup.sh stock`), two steps at a time (the
memory pattern is that of the first step there, and used from the second one on). ORIGINAL is a lowered graph then, and every bit has to
agree at ENABLE_ALL as well.

With --device cuda they are run by the CUDA provider, in DEFAULT order alone: as they are for the peaks, and with deterministic kernels,
which take other memory, for the results. Some kernels add up in any order all the same. So where results differ, ORIGINAL is run twice
more, and a result of which its own runs have different bits counts as "unsteady", not as differing.

Exit status 0 if all agree.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np
import onnx

import measure

TOLERANCE = 1e-5
# A gradient that is zero but for rounding (of a convolution's bias before a normalization, say) has no
# digits to agree on: it is compared with this part of the largest gradient's root mean square.
NOISE = 1e-6
SEVERAL = 10
SEED = 1
BLOCKS = "NchwcTransformer"
REPOSITORY = os.path.dirname(measure.TOOLS)


class Runs:
    """One step of a graph in both orders at DISABLE_ALL and at ENABLE_ALL; the tensors of the latter in DEFAULT
    order are kept in `folder`, as long as that exists."""

    def __init__(self, path, dims, folder, enable_all=True, settings="lean", inputs_of=None, runner=None):
        common = {**(runner or {}), "inputs_of": inputs_of, "dims": dims, "seed": SEED, "expose_statistics": True, "settings": settings, "no_arena": True}
        self.path, self.common, self.folder = path, common, folder
        self.on_gpu = common.get("device", "cpu") != "cpu"
        self.default = self._step(path, common)
        self.priority = self._step(path, common, order="priority")
        self.enable_all = self.enable_all_priority = self.dump = None
        if enable_all:
            handle, self.dump = tempfile.mkstemp(".npz", dir=folder)
            os.close(handle)
            self.enable_all = self._step(path, common, level="enable_all", dump=self.dump)
            self.enable_all_priority = self._step(path, common, level="enable_all", order="priority")

    def _step(self, path, common, order="default", dump=None, **way):
        if not self.on_gpu:
            return measure.step(path, order=order, dump=dump, **common, **way)
        if order == "priority":
            return None
        as_it_is = measure.step(path, **common, **way)
        return {**measure.step(path, dump=dump, deterministic=True, **common, **way), "peak_bytes": as_it_is["peak_bytes"],
                "seconds_per_step": as_it_is["seconds_per_step"]}

    def unsteady(self):
        """The results of which runs of this graph have different bits."""
        others = [self._step(self.path, self.common)["digests"] for _ in range(2)]
        return {name for name, digest in self.default["digests"].items() if any(other[name] != digest for other in others)}

    def between_levels(self):
        """By result of this graph: how much it differs at DISABLE_ALL and at ENABLE_ALL."""
        with tempfile.NamedTemporaryFile(suffix=".npz", dir=self.folder) as dump:
            self._step(self.path, self.common, dump=dump.name)
            return differences(self.dump, dump.name)

    def summary(self):
        """The peaks, in bytes beyond what the session and the caller own, and the seconds."""
        summary = {}
        for name in ("default", "priority", "enable_all", "enable_all_priority"):
            step = getattr(self, name)
            if step:
                summary[name] = step["peak_bytes"]
                summary[name + "_seconds"] = min(step["seconds_per_step"])
        return summary


def asked_for(rewritten):
    """What a rewritten file wants of its session, as measure.step is told: optimizers that are switched off, and what the provider
    is told."""
    said = {entry.key: entry.value for entry in onnx.load(rewritten, load_external_data=False).metadata_props}
    entries = json.loads(said.get("ckpt-opt.session_config_entries", "{}"))
    disabled = [name for name in entries.get("optimization.disable_specified_optimizers", "").split(";") if name]
    providers = json.loads(said.get("ckpt-opt.provider_options", "{}"))
    options = json.loads(said.get("ckpt-opt.session_options", "{}"))
    return {"threads": options.get("intra_op_num_threads", 1), "disabled": disabled, "provider_options": providers.get("CUDAExecutionProvider")}


# As `ckpt-opt --runtime` calls them. All but the one that trains run lowered graphs, by a Python of their own.
TRAINING = "training-1.19.2"
RUNTIMES = {TRAINING: None, "stock": ".venv-stock", "stock-1.26": ".venv-stock-1.26.0"}


def python_of(runtime):
    """The Python of a runtime that is not the one that trains."""
    return os.path.join(REPOSITORY, RUNTIMES[runtime], "bin", "python")


def runner(runtime, python=None, device="cpu", rewritten=None):
    """What measure.step is told of the runtime besides, to run a `rewritten` file as it asks for, or its original."""
    asked = asked_for(rewritten) if rewritten else {}
    stock = {"python": python or python_of(runtime), "steps": 2} if runtime != TRAINING else {}
    return {**stock, "device": device, **asked}


def runners(asked):
    """The same for the original and for what is rewritten."""
    return {**asked, "disabled": [*asked["disabled"], BLOCKS]}, asked


def as_it_is(path, dims, settings="lean", inputs_of=None, runner=None):
    """The peaks of a graph whose running statistics are not fed, as those of Runs.summary: each that is fed takes some bytes."""
    common = {**(runner or {}), "inputs_of": inputs_of, "dims": dims, "seed": SEED, "settings": settings, "no_arena": True}
    ways = {"default": {}, "priority": {"order": "priority"}, "enable_all": {"level": "enable_all"},
            "enable_all_priority": {"level": "enable_all", "order": "priority"}}
    if common.get("device", "cpu") != "cpu":
        ways = {name: way for name, way in ways.items() if "order" not in way}
    return {name: measure.step(path, **common, **way)["peak_bytes"] for name, way in ways.items()}


def compare(original, rewritten, optimized=False):
    """How the results of two graphs' Runs differ; with `optimized`, every bit counts at ENABLE_ALL as well."""
    by_order = {order: getattr(original, order)["digests"] for order in ("default", "priority") if getattr(original, order)}
    reference, every = by_order["default"], list(by_order.values())
    differing = []
    for order, accepted in (("default", [reference]), ("priority", every)):
        if order not in by_order:
            continue
        digests = getattr(rewritten, order)["digests"]
        differing += [
            f"{order}: {name}" for name in sorted(set(reference) | set(digests))
            if digests.get(name) not in [expected.get(name) for expected in accepted]
        ]
    if optimized and original.enable_all and rewritten.enable_all:
        for way in ("enable_all", "enable_all_priority"):
            if getattr(original, way) is None:
                continue
            wanted, found = (getattr(runs, way)["digests"] for runs in (original, rewritten))
            differing += [f"{way}: {name}" for name in sorted(set(wanted) | set(found)) if found.get(name) != wanted.get(name)]
    unsteady = original.unsteady() if differing and original.on_gpu else set()
    differing = [said for said in differing if said.split(": ", 1)[1] not in unsteady]
    result = {
        "original": original.summary(),
        "rewritten": rewritten.summary(),
        "caller_bytes": original.default["caller_bytes"],
        "compared": len(reference),
        "bits_equal": not differing,
        "differing": differing,
        "unsteady": sorted(unsteady),
        "not_finite": original.default["not_finite"],
    }
    result["ok"] = not differing and not result["not_finite"]
    if original.dump and rewritten.dump:
        found = {name: by for name, by in differences(original.dump, rewritten.dump).items() if name not in unsteady}
        far = {name: by for name, by in found.items() if by > TOLERANCE}
        own = original.between_levels() if far and not optimized else {}
        result["level_dependent"] = sorted(name for name, by in far.items() if by <= SEVERAL * own.get(name, 0))
        left = {name: by for name, by in found.items() if name not in result["level_dependent"]}
        where = max(left, key=left.get, default=None)
        result["max_relative_difference"], result["most_different"] = left.get(where, 0.0), where
        result["ok"] = result["ok"] and result["max_relative_difference"] <= TOLERANCE
    return result


def differences(first, second):
    """By tensor that is not the same in both: the relative difference, |a - b| / max(|a|, NOISE of the largest); infinite where they are
    not comparable."""
    with np.load(first) as a, np.load(second) as b:
        names = [str(name) for name in a["names"]]
        if names != [str(name) for name in b["names"]]:
            return {"the set of tensors": float("inf")}
        sizes = [root_mean_square(a[str(i)]) for i in range(len(names))]
        floor = NOISE * max((size for name, size in zip(names, sizes) if name.startswith("input:")), default=0)
        found = {}
        for i, name in enumerate(names):
            x, y = a[str(i)], b[str(i)]
            if x.shape != y.shape or x.dtype != y.dtype:
                return {name: float("inf")}
            if not np.array_equal(x, y):
                by = root_mean_square(x.astype(np.float64) - y) / max(sizes[i], floor, 1e-30)
                found[name] = by if by >= 0 else float("inf")
    return found


def root_mean_square(array):
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def describe(result):
    lines = [f"{result['compared']} tensors compared"]
    for role in ("original", "rewritten"):
        peaks = result[role]
        by_priority = f", {peaks['priority'] / 1e6:.1f} MB in PRIORITY_BASED" if "priority" in peaks else ""
        lines.append(f"{role}: peak {peaks['default'] / 1e6:.1f} MB in DEFAULT{by_priority} order, "
                     f"beyond {result['caller_bytes'] / 1e6:.1f} MB of inputs")
    equal = "every bit agrees" if result["bits_equal"] else f"{len(result['differing'])} differ"
    lines.append(f"DISABLE_ALL: {equal}")
    lines += ["    " + name for name in result["differing"][:10]]
    if result["unsteady"]:
        lines.append(f"{len(result['unsteady'])} differ between runs of the original as well")
    if result["not_finite"]:
        lines.append("not finite in the original: " + ", ".join(result["not_finite"][:10]))
    if "max_relative_difference" in result:
        where = f" ({result['most_different']})" if result["most_different"] else ""
        lines.append(f"ENABLE_ALL: largest relative difference {result['max_relative_difference']:.1e}{where}")
    if result.get("level_dependent"):
        lines.append(f"{len(result['level_dependent'])} differ as much between levels of the original")
    lines.append("ok" if result["ok"] else "FAILED")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("rewritten")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--settings", choices=["lean", "no-pattern", "default"], default="lean")
    parser.add_argument("--no-enable-all", action="store_true", help="leave the comparison at ENABLE_ALL out")
    parser.add_argument("--runtime", choices=RUNTIMES, default=TRAINING)
    parser.add_argument("--python", help="which Python runs them, with --runtime stock")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = runner(args.runtime, args.python, args.device, args.rewritten)
        runs = [Runs(path, args.dim, folder, not args.no_enable_all, args.settings, args.original, runner)
                for path, runner in zip((args.original, args.rewritten), runners(asked))]
        result = compare(*runs, optimized=args.runtime != TRAINING)
    print(json.dumps(result) if args.json else describe(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
