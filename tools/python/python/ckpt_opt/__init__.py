"""Rewrites ONNX Runtime training graphs so that one training step fits a memory budget.

    import ckpt_opt
    result = ckpt_opt.optimize("training_model.onnx", "training_model.8gib.onnx", budget="8GiB", dims={"batch": 32})
    print(result)

`optimize` plans and writes, `inspect` tells what a step needs and what holds it, `sweep` what budgets cost, `largest` the
largest batch that fits, and `verify` proves that one file computes what another does. A model is a path, the bytes of a
file, or an `onnx.ModelProto`. `ckpt_opt.ort` has what a session needs.

Everything runs without the interpreter's lock; Ctrl-C ends it, and then nothing is written. Sizes are in bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings as _warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _ckpt_opt
from ._ckpt_opt import CkptOptError, UsageError

__all__ = [
    "Attempt", "CkptOptError", "CkptOptWarning", "Holder", "InfeasibleError", "Inspection", "Kept", "Largest", "Layer",
    "Peak", "Point", "Result", "Sweep", "UsageError", "Verification", "inspect", "largest", "lower", "optimize", "sweep", "verify",
]

#: A path, the bytes of a file, or an `onnx.ModelProto`.
Model = Union[str, "os.PathLike[str]", bytes, Any]
#: "8GiB", "800MB", a number of bytes, "60%" of the peak, "fixed+50%" of what the caller does not own, or "min".
Budget = Union[str, int]
#: A file, or what would be in it.
Table = Union[str, "os.PathLike[str]", Mapping[str, Any]]
#: Called with what is done: `progress(event, **facts)`.
Progress = Callable[..., Any]


class CkptOptWarning(UserWarning):
    """The model, the options and the files that they name do not quite go together."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """Something that lives at a peak."""

    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Layer:
    """What nodes whose names begin alike hold at a peak."""

    name: str
    bytes: int
    tensors: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """Results that are never computed again."""

    reason: str
    bytes: int
    #: How many nodes there are of each operator.
    operators: Dict[str, int]


class InfeasibleError(CkptOptError):
    """No plan fits the budget.

    Attributes: `budget_bytes`, `smallest_peak_bytes` (the smallest that was found), `holders` (what holds it, the
    largest first).
    """

    def __init__(self, text: str, budget_bytes: int, smallest_peak_bytes: int, holders: Sequence[Holder]):
        super().__init__(text)
        self.budget_bytes = budget_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.holders = list(holders)


@dataclasses.dataclass(frozen=True)
class Peak:
    """The largest need of a step in one execution order, and what makes it."""

    peak_bytes: int
    #: The position in the executed order, and the node that runs there.
    step: int
    node: str
    #: What is live besides what the caller owns, the largest first.
    holders: List[Holder]
    #: The same by kind: activations, gradients, workspace of the node, ...
    kinds: Dict[str, int]
    #: The tensors of it by layer, the largest first.
    layers: List[Layer]

    @classmethod
    def _of(cls, report: Mapping[str, Any]) -> "Peak":
        holders = [Holder(**holder) for holder in report["holders"]]
        layers = [Layer(**layer) for layer in report["layers"]]
        return cls(report["peak_bytes"], report["step"], report["node"], holders, report["kinds"], layers)


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What one training step takes."""

    nodes: int
    #: What the caller owns, and the reserve.
    fixed_bytes: int
    #: By execution order: "DEFAULT", "PRIORITY_BASED" and, where it is another, "MEMORY_EFFICIENT".
    orders: Dict[str, Peak]
    #: No plan that keeps the node as it is needs less.
    floor_bytes: int
    floor_node: str
    #: Results that are never computed again, by reason.
    kept: List[Kept]
    #: Operators that are not known, and how many nodes there are of each.
    unknown_operators: Dict[str, int]
    _text: str = dataclasses.field(repr=False, default="")

    def __str__(self) -> str:
        return self._text

    @property
    def peak_bytes(self) -> int:
        """In DEFAULT order, which sessions use unless told otherwise."""
        return self.orders["DEFAULT"].peak_bytes


@dataclasses.dataclass(frozen=True)
class Verification:
    """What two files that compute the same need, by execution order."""

    before: Dict[str, Peak]
    after: Dict[str, Peak]


@dataclasses.dataclass(frozen=True)
class Point:
    """What one budget costs."""

    budget: str
    budget_bytes: int
    fits: bool
    #: The rest is None where nothing fits.
    peak_after_bytes: Optional[int]
    #: Added time / time of the unmodified step.
    overhead: Optional[float]
    lower_bound_overhead: Optional[float]
    recomputed_nodes: Optional[int]
    #: Where the budget holds, as the options of these names call it.
    order: Optional[str]
    level: Optional[str]
    #: "time_limit" if that ended the search, also where nothing was found before.
    stop_reason: Optional[str]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a row of budgets costs."""

    fixed_bytes: int
    peak_before_bytes: int
    smallest_peak_bytes: Optional[int]
    points: List[Point]
    _text: str = dataclasses.field(repr=False, default="")

    def __str__(self) -> str:
        return self._text


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One size of a dimension that was tried."""

    size: int
    fits: bool
    overhead: Optional[float]
    #: "time_limit" if that ended the search, also where nothing was found before.
    stop_reason: Optional[str]


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest size of a dimension that fits."""

    dimension: str
    #: None if not even 1 fits.
    size: Optional[int]
    #: The graph of that size, not written yet.
    result: Optional["Result"]
    tried: List[Attempt]


class Result:
    """A graph that fits its budget. Its figures are attributes, with the names of `ckpt-opt --json`:
    `peak_before_bytes`, `peak_after_bytes`, `overhead`, `recomputed_nodes`, ...; all of them are in `figures`.
    """

    def __init__(self, native: Any, output: Optional[str]):
        self._native = native
        #: Where it was written; None if it was not.
        self.output = output
        #: All that `ckpt-opt --report` writes.
        self.figures: Dict[str, Any] = json.loads(native.report())
        #: Options for the session, the dimensions, and the predicted peak: what `--session-options` writes.
        self.session: Dict[str, Any] = json.loads(native.session())
        #: What to look at, a sentence each.
        self.warnings: List[str] = native.warnings()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["figures"][name]
        except KeyError:
            raise AttributeError(f"a result has no {name!r}; it has {sorted(self.__dict__.get('figures', ()))}") from None

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *self.figures]

    def __repr__(self) -> str:
        return (f"Result(peak {self.peak_before_bytes} -> {self.peak_after_bytes} bytes, "
                f"overhead {100 * self.overhead:.2f} %, output={self.output!r})")

    def __str__(self) -> str:
        return self._native.table(self.output)

    def write(self, output: Union[str, "os.PathLike[str]"]) -> "Result":
        """Writes the file, whole and proved, or not at all."""
        output = os.fspath(output)
        with _errors():
            self._native.write(output)
        return Result(self._native, output)

    def to_bytes(self) -> bytes:
        """The file, as bytes."""
        with _errors():
            return self._native.to_bytes()

    def to_model(self) -> Any:
        """The file, as an `onnx.ModelProto`."""
        import onnx

        return onnx.load_model_from_string(self.to_bytes())

    def svg(self) -> str:
        """Memory over one step, before and after, as an image."""
        return self._native.plot()

    def png(self) -> bytes:
        """The same in pixels, as a PNG file."""
        with _errors():
            return self._native.png()

    def html(self) -> str:
        """The result as a page for a browser, which needs nothing else."""
        return self._native.page()

    def trace(self) -> str:
        """Both steps, before and after, as a trace that Perfetto and Chrome show, as JSON."""
        return self._native.trace()

    def _repr_svg_(self) -> str:
        return self.svg()


def optimize(
    model: Model,
    output: Union[str, "os.PathLike[str]", None] = None,
    budget: Budget = "min",
    dims: Optional[Mapping[str, int]] = None,
    **options: Any,
) -> Result:
    """A graph that computes what `model` computes and fits the budget with the least added time; written to `output`,
    if that is given. `InfeasibleError` says what the smallest peak is, and what holds it.

    Options, as those of the command line: reserve="0", optimizer=None ("adamw", "sgd", or the optimizer's model), device="cpu" (a name, a file or a dict), costs, profile,
    conv_table (files or dicts), runtime=None ("training-1.19.2", "stock", "stock-1.26", or what the operators ask for),
    runtime_settings=None, threads=None, order=None, level=None, strategy="auto", variants="all" (or a list), allow=(),
    seed=0, time_limit=None (seconds), certify=False; and progress, a function that is called with what is done:
    `progress(event, **facts)`, with "planning", "searching" (several times a second) and "writing". With
    progress=True there is a bar, if tqdm is installed.
    """
    settings, progress, end = _settings(dims, options)
    with _errors(), end:
        native = _ckpt_opt.optimize(_model(model), str(budget), settings, progress)
        result = Result(native, None)
        _warn(result.warnings)
    return result if output is None else result.write(output)


def lower(
    model: Model,
    output: Union[str, "os.PathLike[str]"],
    dims: Optional[Mapping[str, int]] = None,
    optimizer: Optional[Model] = None,
) -> str:
    """Writes the model's training operators in standard ones, so that an ONNX Runtime without training runs it; gives the
    path. `optimize` plans such a file for these builds. The file does not depend on `dims`: they help where the graph accepts
    few sizes and says too little of its tensors. With an `optimizer` ("adamw", "sgd", or an optimizer_model.onnx) the graph updates its weights itself:
    `ckpt_opt.ort.Step` runs it."""
    output = os.fspath(output)
    with _errors():
        _ckpt_opt.lower(_model(model), output, dict(dims or {}), None if optimizer is None else _model(optimizer))
    return output


def inspect(model: Model, dims: Optional[Mapping[str, int]] = None, **options: Any) -> Inspection:
    """What one training step of the model takes as it is. Options as for `optimize`."""
    settings, progress, end = _settings(dims, options)
    with _errors(), end:
        found, text = _ckpt_opt.inspect(_model(model), settings, progress)
    found = json.loads(found)
    kept = [Kept(**one) for one in found["kept"]]
    return Inspection(found["nodes"], found["fixed_bytes"], _peaks(found), found["floor_bytes"], found["floor_node"], kept,
                      found["unknown_operators"], text)


def verify(original: Model, rewritten: Model, dims: Optional[Mapping[str, int]] = None, **options: Any) -> Verification:
    """Proves that `rewritten` computes what `original` computes; `CkptOptError` says what differs."""
    settings, progress, end = _settings(dims, options)
    with _errors(), end:
        found = json.loads(_ckpt_opt.verify(_model(original), _model(rewritten), settings, progress))
    return Verification(_peaks(found["before"]), _peaks(found["after"]))


def sweep(
    model: Model,
    budgets: Optional[Sequence[Budget]] = None,
    dims: Optional[Mapping[str, int]] = None,
    **options: Any,
) -> Sweep:
    """What each of the budgets costs; without any: fixed+90%, fixed+80% and so on down to fixed+20%."""
    settings, progress, end = _settings(dims, options)
    texts = None if budgets is None else [str(budget) for budget in budgets]
    with _errors(), end:
        found, text = _ckpt_opt.sweep(_model(model), texts, settings, progress)
    found = json.loads(found)
    row = found["strategies"][0]
    if row["refused"] is not None:
        raise CkptOptError(f"{row['strategy']} refused: {row['refused']}")
    fields = [field.name for field in dataclasses.fields(Point) if field.name != "budget"]
    points = [Point(budget, **{name: cell[name] for name in fields})
              for budget, cell in zip(found["budgets"], row["rows"])]
    return Sweep(found["fixed_bytes"], found["peak_before_bytes"], row["smallest_peak_bytes"], points, text)


def largest(
    model: Model,
    dim: str,
    budget: Budget,
    at_most: Optional[float] = None,
    dims: Optional[Mapping[str, int]] = None,
    **options: Any,
) -> Largest:
    """The largest size of the dimension `dim` with which a step fits the budget (in bytes), and takes at most the part
    `at_most` of a step longer (0.1 for 10 %). `dims` are the sizes of the others."""
    settings, progress, end = _settings(dims, options)
    with _errors(), end:
        found, native = _ckpt_opt.largest(_model(model), dim, str(budget), at_most, settings, progress)
    found = json.loads(found)
    tried = [Attempt(**attempt) for attempt in found["tried"]]
    result = None if native is None else Result(native, None)
    _warn(result.warnings if result else [])
    return Largest(dim, found["largest"], result, tried)


_DEFAULTS: Dict[str, Any] = {
    "reserve": "0", "optimizer": None, "device": "cpu", "costs": None, "profile": None, "conv_table": None, "runtime": None, "runtime_settings": None, "threads": None,
    "order": None, "level": None,
    "strategy": "auto", "variants": "all", "allow": (), "seed": 0, "time_limit": None, "certify": False, "progress": None,
}


def _settings(dims: Optional[Mapping[str, int]], options: Mapping[str, Any]) -> Tuple[Dict[str, Any], Any, Any]:
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise UsageError(f"there is no option {', '.join(map(repr, unknown))}; expected some of {', '.join(sorted(_DEFAULTS))}")
    settings = {**_DEFAULTS, **options, "dims": dict(dims or {})}
    for name in ("variants", "allow"):
        if isinstance(settings[name], str):
            settings[name] = settings[name].split(",")
        settings[name] = list(settings[name])
    settings["reserve"] = str(settings["reserve"])
    if settings["optimizer"] is not None:
        settings["optimizer"] = _model(settings["optimizer"])
    for name in ("device", "costs", "profile", "conv_table"):
        if isinstance(settings[name], (Mapping, list)):
            settings[name] = json.dumps(settings[name]).encode()
    progress = settings.pop("progress")
    bar = _Bar() if progress is True else None
    return settings, bar or progress or None, bar or _Nothing()


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class _Bar(_Nothing):
    """How far a search is, if tqdm is there to show it."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            self._bar = None
        else:
            self._bar = tqdm(unit=" evaluations", unit_scale=True)

    def __call__(self, event: str, **facts: Any) -> None:
        if self._bar is None:
            return
        if event == "searching":
            self._bar.update(max(0, facts["evaluations"] - self._bar.n))
            if "overhead" in facts:
                self._bar.set_postfix_str(
                    f"adds {100 * facts['overhead']:.2f} %, at least {100 * facts['lower_bound_overhead']:.2f} %")
        else:
            self._bar.set_description(" ".join([event, *(str(fact) for fact in facts.values())]))

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


class _errors(_Nothing):
    """Makes what the native half raises what this one promises."""

    def __exit__(self, kind: Any, raised: Any, _: Any) -> None:
        if isinstance(raised, _ckpt_opt.InfeasibleError):
            text, budget, smallest, holders = raised.args
            infeasible = InfeasibleError(text, budget, smallest, [Holder(*holder) for holder in holders])
            infeasible.code, infeasible.help = raised.code, raised.help
            raise infeasible from None


def _model(model: Model) -> Union[str, bytes]:
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    return model if isinstance(model, bytes) else os.fspath(model)


def _peaks(found: Mapping[str, Any]) -> Dict[str, Peak]:
    return {order: Peak._of(report) for order, report in found["orders"].items()}


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        _warnings.warn(text, CkptOptWarning, stacklevel=3)
