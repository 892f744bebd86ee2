"""The hook for PyTorch's ORTModule: the training graph that it makes is rewritten before its session is made.

    model = ORTModule(network)
    rewriting = ckpt_opt.ortmodule.rewrite(model, budget="fixed+60%")
    model(batch).backward()             # plans in the first step
    print(rewriting.result)

Runtime fact (onnxruntime-training 1.19.2): an ORTModule makes its session in the first training step, and again when what
it is given changes the graph; its sessions reuse no buffers, which is `runtime_settings="lean"`.
"""

from __future__ import annotations

import types
from typing import Any, Dict, Mapping, Optional

from . import Budget, CkptOptError, Result, optimize
from .ort import session_options


class Rewriting:
    """What came of a module's graph."""

    #: Of the graph that is trained with; None before the first training step.
    result: Optional[Result] = None

    def __init__(self) -> None:
        self._refused: Optional[Exception] = None


def rewrite(module: Any, budget: Budget, dims: Optional[Mapping[str, int]] = None, **options: Any) -> Rewriting:
    """Has an `ORTModule` train with a graph that fits the budget. Call it before the first step.

    The budget holds for the sizes of the first batch, so let that be a large one; `dims` gives sizes by the names that
    ORTModule makes, INPUT_dimN. Of memory that PyTorch holds nothing is counted but what the graph is given: see
    `reserve` and `optimizer`. Options are those of `optimize`. The first step raises `InfeasibleError` where nothing
    fits; it does not go on with PyTorch alone.
    """
    manager = _manager(module)
    rewriting, options = Rewriting(), {"runtime_settings": "lean", **options}
    run, make_session, configure = manager.forward, manager._create_execution_agent, manager._get_session_config
    batch: Dict[str, Any] = {}

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        batch.update(inputs=inputs, keywords=keywords)
        try:
            outputs = run(*inputs, **keywords)
        finally:
            batch.clear()
            refused, rewriting._refused = rewriting._refused, None
            if refused is not None:
                raise refused
        return outputs

    def create_execution_agent(self: Any) -> None:
        models = manager._onnx_models
        original = models.optimized_model
        try:
            result = optimize(original, None, budget, {**_sizes(manager, original, **batch), **(dims or {})}, **options)
            models.optimized_model = result.to_model()
            # What ORTModule asks for stays, and what the budget needs comes on top.
            config = configure()
            session_options(models.optimized_model, config[0])
            manager._get_session_config = lambda: config
            make_session()
        except CkptOptError as error:
            # ORTModule would take it for a reason to go on without ONNX Runtime.
            rewriting._refused = error
            raise
        finally:
            models.optimized_model, manager._get_session_config = original, configure
        rewriting.result = result

    manager.forward = types.MethodType(forward, manager)
    manager._create_execution_agent = types.MethodType(create_execution_agent, manager)
    return rewriting


def _manager(module: Any) -> Any:
    """What makes the sessions of a module that trains."""
    try:
        return module._torch_module._execution_manager(True)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"expected an onnxruntime.training.ortmodule.ORTModule, not {type(module).__name__}") from error


def _sizes(manager: Any, model: Any, inputs: Any, keywords: Any) -> Dict[str, int]:
    """The sizes of named dimensions of the graph's inputs in this batch."""
    described = manager._graph_transition_manager._post_export_processed_model_info
    given = described.construct_inputs(inputs, keywords, True, manager._device)
    sizes: Dict[str, int] = {}
    for value in model.graph.input:
        if value.name in given:
            for dim, size in zip(value.type.tensor_type.shape.dim, given[value.name].shape):
                if dim.dim_param:
                    sizes[dim.dim_param] = int(size)
    return sizes
