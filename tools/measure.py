"""Starts `run_step.py` in a fresh process with the malloc counter preloaded, and reads its result.

The counter is `libmalloc_counter.so` of the crate `malloc-counter`. Its path is the environment
variable MALLOC_COUNTER, or else cargo's usual target folder.
"""

import json
import os
import subprocess
import sys
import tempfile

import onnx

TOOLS = os.path.dirname(os.path.abspath(__file__))
# glibc keeps what is freed for the next tensor. Left alone it may give memory back to the system and take it again for each of
# them, in some processes and not in others, which can double a step's time.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


class StepFailed(Exception):
    """The step's process ended without a result; carries what it said."""


def link_external_data(model, folder):
    """Makes the files that the model keeps tensors in be found from `folder` as well. Are there any?"""
    loaded = onnx.load(model, load_external_data=False)
    tensors = onnx.external_data_helper._get_all_tensors(loaded)
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for place in places:
        link = os.path.join(folder, place)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.join(os.path.dirname(os.path.abspath(model)), place), link)
    return bool(places)


def malloc_counter():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(TOOLS), "target"))
    candidates = [os.environ.get("MALLOC_COUNTER")]
    candidates += [os.path.join(target, profile, "libmalloc_counter.so") for profile in ("release", "debug")]
    for path in candidates:
        if path and os.path.exists(path):
            return path
    raise SystemExit("no malloc counter: run `cargo build -p malloc-counter`")


def step(model, dims=(), order="default", level="disable_all", settings="lean", no_arena=False, threads=1, steps=1,
         seed=None, expose_statistics=False, profile=False, dump=None, inputs_of=None, caller_outputs=None,
         python=sys.executable, disabled=(), device="cpu", provider_options=None, deterministic=False, timeout=1800):
    """What `run_step.py` prints, as a dictionary; with `profile` also "executed"."""
    command = [python, os.path.join(TOOLS, "run_step.py"), model, "--order", order, "--level", level,
               "--settings", settings, "--threads", str(threads), "--steps", str(steps)]
    for dim in dims:
        command += ["--dim", dim]
    if seed is not None:
        command += ["--seed", str(seed)]
    if expose_statistics:
        command.append("--expose-statistics")
    if disabled:
        command += ["--disable-optimizers", ";".join(disabled)]
    if inputs_of:
        command += ["--inputs-of", inputs_of]
    if caller_outputs:
        command += ["--caller-outputs", caller_outputs]
    if no_arena:
        command.append("--no-arena")
    if device != "cpu":
        command += ["--device", device, "--provider-options", json.dumps(provider_options or {})]
    if deterministic:
        command.append("--deterministic")
    if dump:
        command += ["--dump", dump]
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "executed.json")
        if profile:
            command += ["--profile", trace]
        environment = dict(os.environ)
        if device == "cpu":
            environment["LD_PRELOAD"] = malloc_counter()
            environment.update(KEPT)
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise StepFailed(f"{os.path.basename(model)}: no result in {timeout} s") from None
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise StepFailed(f"{os.path.basename(model)}: {last[0]}")
        result = json.loads(done.stdout)
        if profile:
            with open(trace) as file:
                result["executed"] = json.load(file)
    return result
