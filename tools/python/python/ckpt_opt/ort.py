"""What ONNX Runtime has to be told for a rewritten graph, and the way from artifacts to a module.

    module = ckpt_opt.ort.module("artifacts", budget="8GiB", dims={"batch": 32})
    optimizer = onnxruntime.training.api.Optimizer("artifacts/optimizer_model.onnx", module)

`artifacts` is a folder as `onnxruntime.training.artifacts.generate_artifacts` makes it.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Optional, Union

from . import Budget, Model, Result, _model, optimize

#: What keys of the metadata begin with that is this program's own.
PREFIX = "ckpt-opt."


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
        setattr(options, name, value)
    for name, value in json.loads(said.get("session_config_entries", "{}")).items():
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
    Its session is made as the budget needs it. `device` is the module's; the option of `optimize` with that name
    follows it ("cuda:0" is planned for an A100 unless `device_model` says otherwise)."""
    from onnxruntime.training import api

    folder = os.fspath(folder)
    planned_for = options.pop("device_model", "cpu" if device == "cpu" else "a100")
    result = optimize_artifacts(folder, budget, dims, device=planned_for, **options)
    state = api.CheckpointState.load_checkpoint(os.path.join(folder, "checkpoint"))
    evaluation = os.path.join(folder, "eval_model.onnx")
    evaluation = evaluation if os.path.exists(evaluation) else None
    return api.Module(result.output, state, evaluation, device=device, session_options=session_options(result.output))
