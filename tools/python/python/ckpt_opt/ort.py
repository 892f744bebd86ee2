"""What ONNX Runtime has to be told for a rewritten graph, and the way from artifacts to a module.

    module = ckpt_opt.ort.module("artifacts", budget="8GiB", dims={"batch": 32})
    optimizer = onnxruntime.training.api.Optimizer("artifacts/optimizer_model.onnx", module)

`artifacts` is a folder as `onnxruntime.training.artifacts.generate_artifacts` makes it.
"""

from __future__ import annotations

import json
import os
import warnings as _warnings
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from . import Budget, CkptOptWarning, Model, Result, _model, optimize

#: What keys of the metadata begin with that is this program's own.
PREFIX = "ckpt-opt."

#: Options whose values have names, and where ONNX Runtime has these.
_NAMED = {"execution_order": "ExecutionOrder", "graph_optimization_level": "GraphOptimizationLevel"}

#: All else that a plan asks a session for. A file could ask for more: it is not trusted with options that write files.
_SWITCHES = {"enable_mem_reuse", "enable_mem_pattern", "enable_cpu_mem_arena"}
_ENTRIES = {"optimization.disable_specified_optimizers"}


def metadata(model: Model) -> Dict[str, str]:
    """What a rewritten file says of itself, without the prefix of the keys; empty for any other file."""
    import onnx

    source = _model(model)
    # Data in other files is of no interest.
    loaded = (onnx.load_model_from_string(source) if isinstance(source, bytes)
              else onnx.load(source, load_external_data=False))
    return {entry.key[len(PREFIX):]: entry.value for entry in loaded.metadata_props if entry.key.startswith(PREFIX)}


def session_options(model: Model, options: Any = None) -> Any:
    """`onnxruntime.SessionOptions` for which the budget of a rewritten file holds: `options`, or new ones, with what
    the file asks for."""
    import onnxruntime

    options = options or onnxruntime.SessionOptions()
    said = metadata(model)
    for name, value in json.loads(said.get("session_options", "{}")).items():
        if name in _NAMED:
            kind = getattr(onnxruntime, _NAMED[name])
            if value not in kind.__members__:
                raise ValueError(f"the file asks for {name} = {value!r}; expected one of {', '.join(kind.__members__)}")
            setattr(options, name, kind.__members__[value])
        elif name in _SWITCHES and isinstance(value, bool):
            setattr(options, name, value)
        else:
            raise ValueError(f"the file asks for the session option {name} = {value!r}, which no plan needs")
    for name, value in json.loads(said.get("session_config_entries", "{}")).items():
        if name not in _ENTRIES or not isinstance(value, str):
            raise ValueError(f"the file asks for the session's entry {name} = {value!r}, which no plan needs")
        options.add_session_config_entry(name, value)
    return options


def provider_options(model: Model) -> Mapping[str, Mapping[str, str]]:
    """The options that providers have to have, by provider; empty where nothing matters."""
    return json.loads(metadata(model).get("provider_options", "{}"))


def optimize_artifacts(
    folder: Union[str, "os.PathLike[str]"],
    budget: Budget,
    dims: Optional[Mapping[str, int]] = None,
    **options: Any,
) -> Result:
    """Rewrites `training_model.onnx` of the folder to `training_model.ckpt-opt.onnx` beside it."""
    folder = os.fspath(folder)
    output = os.path.join(folder, "training_model.ckpt-opt.onnx")
    return optimize(os.path.join(folder, "training_model.onnx"), output, budget, dims, **options)


def module(
    folder: Union[str, "os.PathLike[str]"],
    budget: Budget,
    dims: Optional[Mapping[str, int]] = None,
    device: str = "cpu",
    **options: Any,
) -> Any:
    """`onnxruntime.training.api.Module` of the folder's artifacts, with the training graph rewritten within the budget.
    Its session is made as the budget needs it. Where ONNX Runtime refuses the folder's evaluation graph, as it does those with
    batch normalizations, the module has none, and a warning says so. `device` is the module's; the option of `optimize` with that name
    follows it ("cuda:0" is planned for an A100 unless `device_model` says otherwise)."""
    from onnxruntime.training import api

    folder = os.fspath(folder)
    planned_for = options.pop("device_model", "cpu" if device == "cpu" else "a100")
    result = optimize_artifacts(folder, budget, dims, device=planned_for, **options)
    state = api.CheckpointState.load_checkpoint(os.path.join(folder, "checkpoint"))
    evaluation = os.path.join(folder, "eval_model.onnx")
    evaluation = evaluation if os.path.exists(evaluation) else None
    asked = dict(device=device, session_options=session_options(result.output))
    try:
        return api.Module(result.output, state, evaluation, **asked)
    except Exception as error:  # its class is one of ONNX Runtime's own
        if evaluation is None or "eval_model.onnx" not in str(error):
            raise
        _warnings.warn(f"the module cannot evaluate: {error}", CkptOptWarning, stacklevel=2)
        return api.Module(result.output, state, **asked)


class Step:
    """A training step whose graph updates its weights itself, as `ckpt_opt.lower(..., optimizer=...)` and `optimize` make it.

        step = ckpt_opt.ort.Step("step.onnx", weights)
        for images, labels in batches:
            loss = next(iter(step(learning_rate=1e-3, images=images, labels=labels).values()))
        weights = step.state()

    `state` has the weights by name, frozen ones too, and what a step before left (`state()`): the optimizer's moments, which
    begin at zero, and the number of the step. New values are written where the old ones are, so that a step holds nothing twice.
    """

    def __init__(self, model: Model, state: Mapping[str, Any], options: Any = None,
                 providers: Sequence[Any] = ("CPUExecutionProvider",), device: str = "cpu"):
        import numpy
        import onnxruntime

        self._numpy, self._ort, self._device = numpy, onnxruntime, device
        self._session = onnxruntime.InferenceSession(_model(model), session_options(model, options), providers=list(providers))
        self._over: Dict[str, str] = json.loads(metadata(model).get("overwrites", "{}"))
        if not self._over:
            raise ValueError("the graph updates no weights itself; expected one of ckpt_opt.lower(..., optimizer=...)")
        inputs = {one.name: one for one in self._session.get_inputs()}
        self._counts = "step" in inputs
        #: How many steps were made.
        self.steps = int(numpy.asarray(state.get("step", 0)).reshape(-1)[0])
        weights = set(self._over.values())
        moments = {name for name in weights if name.endswith((".moment_1", ".moment_2"))}
        missing = sorted(weights - moments - set(state))
        if missing:
            raise ValueError(f"state has no {', '.join(missing)}; expected all weights by name")
        self._held = {}
        for name in inputs:
            if name in state and name != "step":
                # A copy: the step writes to it.
                self._held[name] = self._value(numpy.array(state[name]))
            elif name in moments:
                self._held[name] = self._value(numpy.zeros(inputs[name].shape, numpy.float32))
        self._outputs = [one.name for one in self._session.get_outputs()]

    def _value(self, array: Any) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(self._numpy.ascontiguousarray(array), self._device)

    def __call__(self, learning_rate: float, **batch: Any) -> Dict[str, Any]:
        """One step; gives the outputs that are no weights and no moments."""
        numpy = self._numpy
        fed = {name: numpy.asarray(value) for name, value in batch.items()}
        fed["learning_rate"] = numpy.array([learning_rate], numpy.float32)
        if self._counts:
            fed["step"] = numpy.array([self.steps + 1], numpy.int64)
        binding = self._session.io_binding()
        for name, value in fed.items():
            binding.bind_cpu_input(name, numpy.ascontiguousarray(value))
        for name, held in self._held.items():
            binding.bind_ortvalue_input(name, held)
        for name in self._outputs:
            if name in self._over:
                binding.bind_ortvalue_output(name, self._held[self._over[name]])
            else:
                binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        self.steps += 1
        values = zip(self._outputs, binding.get_outputs())
        return {name: value.numpy() for name, value in values if name not in self._over}

    def state(self) -> Dict[str, Any]:
        """Weights, moments and the number of steps, to be saved and to go on from."""
        state = {name: self._numpy.array(held.numpy()) for name, held in self._held.items()}
        state["step"] = self._numpy.array(self.steps)
        return state
