"""The cases of lowering_check.py: one operator each, with inputs and what it computes, in float64.

A case is a function of a random generator that gives a `Case`. References follow the formulas of the operators, not the
kernels: sums in numpy, loops over what is small.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

MS = "com.microsoft"


@dataclass
class Case:
    """One model: nodes as (operator, domain, inputs, outputs, attributes)."""

    name: str
    nodes: list
    inputs: dict
    reference: dict
    opset: int = 17
    # Inputs that are constants of the graph.
    constants: dict = field(default_factory=dict)
    # Declared otherwise than by the arrays: sizes as names.
    symbols: dict = field(default_factory=dict)
    # Does 1.19.2 have a kernel for it on the CPU?
    kernel: bool = True
    # The least error that is allowed: in 16 bits nobody has a kernel, and results are rounded once or more.
    floor: float = 0.0


def op(operator, inputs, outputs, domain=MS, **attributes):
    return (operator, domain, inputs, outputs, attributes)


def wide(arrays):
    return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in arrays.items()}


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def erf(x):
    return np.vectorize(math.erf)(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def narrowed(case, dtype=np.float16):
    """The same case in 16 bits, or in 64."""
    convert = {name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in case.inputs.items()}
    constants = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in case.constants.items()}
    kind = np.dtype(dtype).name
    floor = 6e-3 if dtype == np.float16 else 0.0
    return Case(f"{case.name}/{kind}", case.nodes, convert, None, case.opset, constants, case.symbols, False, floor)


# Activations: dX of dY and one tensor.

ACTIVATIONS = {
    "ReluGrad": ({}, lambda dy, y: dy * (y > 0)),
    "SigmoidGrad": ({}, lambda dy, y: dy * y * (1 - y)),
    "TanhGrad": ({}, lambda dy, y: dy * (1 - y * y)),
    "LeakyReluGrad": ({"alpha": 0.2}, lambda dy, y: dy * np.where(y > 0, 1, np.float32(0.2).astype(np.float64))),
    "LeakyReluGrad:1.5": ({"alpha": 1.5}, lambda dy, y: dy * np.where(y > 0, 1, 1.5)),
    "LeakyReluGrad:-0.5": ({"alpha": -0.5}, lambda dy, y: dy * np.where(y > 0, 1, -0.5)),
    "GeluGrad": ({}, lambda dy, x: dy * (0.5 * (1 + erf(x / 2**0.5)) + x * np.exp(-x * x / 2) / (2 * math.pi) ** 0.5)),
    "FastGeluGrad": ({}, lambda dy, x: dy * fast_gelu_slope(x)),
    "QuickGeluGrad": ({"alpha": 1.702}, lambda dy, x: dy * quick_gelu_slope(x, float(np.float32(1.702)))),
    "QuickGeluGrad:1": ({"alpha": 1.0}, lambda dy, x: dy * quick_gelu_slope(x, 1.0)),
}


def fast_gelu_slope(x):
    a = (2 / math.pi) ** 0.5
    t = np.tanh(a * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x)


def quick_gelu_slope(x, alpha):
    s = sigmoid(alpha * x)
    return s * (1 + alpha * x * (1 - s))


def activations(rng):
    for name, (attributes, formula) in ACTIVATIONS.items():
        for shape in [(3, 5, 7), (70000,), ()]:
            dy, y = normal(rng, *shape), normal(rng, *shape)
            if name.startswith(("Sigmoid", "Tanh")):
                y = (sigmoid(y) if name.startswith("Sigmoid") else np.tanh(y)).astype(np.float32)
            case = Case(f"{name}{list(shape)}", [op(name.split(":")[0], ["dy", "y"], ["dx"], **attributes)],
                        {"dy": dy, "y": y}, {"dx": formula})
            case.reference = lambda i, formula=formula: {"dx": formula(i["dy"], i["y"])}
            yield case
            if shape == (3, 5, 7):
                for opset in (13, 18):
                    yield Case(f"{case.name}@{opset}", case.nodes, case.inputs, case.reference, opset)
                yield with_reference(narrowed(case), case.reference)
                if name != "GeluGrad":  # Erf has no kernel
                    yield with_reference(narrowed(case, np.float64), case.reference)
    for name, formula in [("BiasGeluGrad_dX", ACTIVATIONS["GeluGrad"][1]), ("BiasFastGeluGrad_dX", ACTIVATIONS["FastGeluGrad"][1])]:
        inputs = {"dy": normal(rng, 4, 6), "x": normal(rng, 4, 6), "b": normal(rng, 6)}
        yield Case(name, [op(name, ["dy", "x", "b"], ["dx"])], inputs,
                   lambda i, formula=formula: {"dx": formula(i["dy"], i["x"] + i["b"])})


def with_reference(case, reference):
    case.reference = reference
    return case


# Softmax

def softmaxes(rng):
    for shape, axis, opset in [((2, 3, 40), -1, 17), ((2, 3, 40), 1, 13), ((4, 1000), -1, 18), ((7,), 0, 15), ((2, 5, 3, 4), 2, 15)]:
        x, dy = rng.standard_normal(shape), normal(rng, *shape)
        e = np.exp(x - x.max(axis, keepdims=True))
        y = e / e.sum(axis, keepdims=True)
        for name, out, formula in [
            ("SoftmaxGrad_13", y, lambda dy, y, a: (dy - (dy * y).sum(a, keepdims=True)) * y),
            ("LogSoftmaxGrad_13", np.log(y), lambda dy, y, a: dy - np.exp(y) * dy.sum(a, keepdims=True)),
        ]:
            case = Case(f"{name}{list(shape)}axis{axis}@{opset}", [op(name, ["dy", "y"], ["dx"], axis=axis)],
                        {"dy": dy, "y": out.astype(np.float32)},
                        lambda i, formula=formula, a=axis: {"dx": formula(i["dy"], i["y"], a)}, opset)
            yield case
            if axis == -1 and len(shape) == 3:
                yield with_reference(narrowed(case), case.reference)
            if axis == 1:
                symbolic = Case(case.name + "/symbolic", case.nodes, case.inputs, case.reference, opset)
                symbolic.symbols = {"dy": ["n", 3, "k"], "y": ["n", 3, "k"]}
                yield symbolic


# Normalizations

def channels(x, values):
    return values.reshape((1, -1) + (1,) * (x.ndim - 2))


def batch_norms(rng):
    for shape in [(4, 6, 5, 7), (8, 3), (2, 5, 9), (2, 3, 4, 4, 5), (1, 64, 28, 28)]:
        axes = tuple(a for a in range(len(shape)) if a != 1)
        c = shape[1]
        x = normal(rng, *shape) * 2 + channels(np.zeros(shape), normal(rng, c) * 3)
        inputs = {"x": x.astype(np.float32), "s": normal(rng, c), "b": normal(rng, c), "m": normal(rng, c),
                  "v": np.abs(normal(rng, c)) + np.float32(0.5)}

        def forward(i, axes=axes):
            mean, var = i["x"].mean(axes), i["x"].var(axes)
            inv = 1 / np.sqrt(var + float(np.float32(1e-5)))
            keep = float(np.float32(0.9))
            return {"y": (i["x"] - channels(i["x"], mean)) * channels(i["x"], inv * i["s"]) + channels(i["x"], i["b"]),
                    "rm": i["m"] * keep + mean * (1 - keep), "rv": i["v"] * keep + var * (1 - keep), "sm": mean, "si": inv}

        node = op("BatchNormInternal", ["x", "s", "b", "m", "v"], ["y", "rm", "rv", "sm", "si"], epsilon=1e-5, momentum=0.9,
                  training_mode=1)
        case = Case(f"BatchNormInternal{list(shape)}", [node], inputs, forward)
        yield case
        if len(shape) == 4:
            symbolic = Case(case.name + "/symbolic", [node], inputs, forward, 14)
            symbolic.symbols = {"x": ["n", c, "h", "w"]}
            yield symbolic
        mean = inputs["x"].mean(axes, dtype=np.float64)
        inv = 1 / np.sqrt(inputs["x"].var(axes, dtype=np.float64) + 1e-5)
        backward = {"dy": normal(rng, *shape), "x": inputs["x"], "s": inputs["s"], "m": mean.astype(np.float32),
                    "i": inv.astype(np.float32)}

        def gradient(i, axes=axes):
            z = (i["x"] - channels(i["x"], i["m"])) * channels(i["x"], i["i"])
            n = z.size / z.shape[1]
            db, ds = i["dy"].sum(axes), (i["dy"] * z).sum(axes)
            dx = channels(z, i["s"] * i["i"]) * (i["dy"] - channels(z, db) / n - z * channels(z, ds) / n)
            return {"dx": dx, "ds": ds, "db": db}

        node = op("BatchNormalizationGrad", ["dy", "x", "s", "m", "i"], ["dx", "ds", "db"], epsilon=1e-5)
        case = Case(f"BatchNormalizationGrad{list(shape)}", [node], backward, gradient)
        yield case
        if len(shape) == 4:
            symbolic = Case(case.name + "/symbolic", [node], backward, gradient, 15)
            symbolic.symbols = {"dy": ["n", c, "h", "w"], "x": ["n", c, "h", "w"]}
            yield symbolic
            yield Case(case.name + "/parameters", [node[:3] + (["", "ds", "db"],) + node[4:]], backward,
                       lambda i, g=gradient: {k: v for k, v in g(i).items() if k != "dx"}, kernel=False)


def layer_norms(rng):
    for shape, axis in [((2, 5, 24), -1), ((3, 768), 1), ((2, 3, 4, 5), 2), ((64, 16), -1)]:
        x, dy = normal(rng, *shape) + np.float32(0.5), normal(rng, *shape)
        axes = tuple(range(axis % len(shape), len(shape)))
        rows = tuple(range(axis % len(shape)))
        scale = normal(rng, *shape[axis % len(shape):])
        mean = x.mean(axes, keepdims=True, dtype=np.float64)
        inv = 1 / np.sqrt(x.var(axes, keepdims=True, dtype=np.float64) + 1e-5)

        def gradient(i, z, has_mean, axes=axes, rows=rows):
            w = i["dy"] * i["s"]
            dx = w - z * (w * z).mean(axes, keepdims=True)
            if has_mean:
                dx = dx - w.mean(axes, keepdims=True)
            return {"dx": dx * i["i"], "ds": (i["dy"] * z).sum(rows), "db": i["dy"].sum(rows)}

        inputs = {"dy": dy, "x": x, "s": scale, "m": mean.astype(np.float32), "i": inv.astype(np.float32)}
        case = Case(f"LayerNormalizationGrad{list(shape)}axis{axis}",
                    [op("LayerNormalizationGrad", ["dy", "x", "s", "m", "i"], ["dx", "ds", "db"], axis=axis)], inputs,
                    lambda i, g=gradient: g(i, (i["x"] - i["m"]) * i["i"], True))
        yield case
        if len(shape) == 3:
            for opset in (14, 18):
                symbolic = Case(f"{case.name}/symbolic@{opset}", case.nodes, inputs, case.reference, opset)
                symbolic.symbols = {name: ["n", "t", "k" if shape[-1] != 24 else 24] for name in ("dy", "x")}
                symbolic.symbols.update({"m": ["n", "t", 1], "i": ["n", "t", 1]})
                yield symbolic
        root = 1 / np.sqrt(np.square(x, dtype=np.float64).mean(axes, keepdims=True) + 1e-6)
        inputs = {"dy": dy, "x": x, "s": scale, "i": root.astype(np.float32)}

        def simplified(i, g=gradient):
            found = g(i, i["x"] * i["i"], False)
            del found["db"]
            return found

        yield Case(f"SimplifiedLayerNormalizationGrad{list(shape)}axis{axis}",
                   [op("SimplifiedLayerNormalizationGrad", ["dy", "x", "s", "i"], ["dx", "ds"], axis=axis)], inputs, simplified)
        scale = (np.abs(scale) + np.float32(0.5)).astype(np.float32)
        bias = normal(rng, *scale.shape)
        inputs = {"dy": dy, "y": ((x - mean) * inv * scale + bias).astype(np.float32), "s": scale, "b": bias,
                  "i": inv.astype(np.float32)}
        yield Case(f"InvertibleLayerNormalizationGrad{list(shape)}axis{axis}",
                   [op("InvertibleLayerNormalizationGrad", ["dy", "y", "s", "b", "i"], ["dx", "ds", "db"], axis=axis)], inputs,
                   lambda i, g=gradient: g(i, (i["y"] - i["b"]) / i["s"], True))


# Convolutions: (x, w, strides, dilations, begins, ends, group)

CONVOLUTIONS = [
    ((2, 3, 17, 19), (8, 3, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((2, 16, 14, 14), (24, 16, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
    ((1, 3, 32, 32), (8, 3, 7, 7), (2, 2), (1, 1), (3, 3), (3, 3), 1),
    ((2, 8, 9, 11), (6, 8, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 1),
    ((2, 8, 9, 12), (6, 8, 1, 1), (2, 3), (1, 1), (0, 0), (0, 0), 1),
    ((2, 8, 15, 13), (12, 8, 3, 5), (1, 2), (2, 1), (2, 0), (1, 3), 1),
    ((2, 6, 12, 12), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 6),
    ((2, 6, 13, 12), (6, 1, 3, 3), (2, 2), (1, 1), (1, 0), (1, 1), 6),
    ((2, 9, 14, 17), (4, 9, 3, 3), (2, 2), (2, 3), (1, 2), (2, 1), 1),
    ((2, 6, 13, 12), (6, 1, 5, 5), (2, 2), (1, 1), (2, 2), (2, 2), 6),
    ((2, 6, 11, 10), (9, 2, 3, 3), (2, 1), (1, 2), (0, 1), (1, 0), 3),
    ((2, 4, 10, 10), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 4),
    ((1, 32, 8, 8), (32, 32, 3, 3), (3, 3), (1, 1), (0, 0), (0, 0), 1),
    ((3, 5, 20), (7, 5, 4), (3,), (2,), (1,), (2,), 1),
    ((3, 12, 20), (7, 12, 3), (1,), (4,), (4,), (4,), 1),
    ((1, 3, 6, 7, 8), (4, 3, 3, 2, 3), (1, 2, 1), (1, 1, 2), (1, 0, 1), (0, 1, 1), 1),
    ((1, 12, 6, 7, 8), (4, 12, 2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), 1),
    ((2, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((2, 10, 5, 5), (4, 10, 5, 5), (1, 1), (1, 1), (0, 0), (0, 0), 1),
    ((2, 12, 7, 9), (8, 3, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 4),
    ((2, 12, 7, 9), (8, 3, 1, 1), (2, 2), (1, 1), (0, 0), (0, 0), 4),
    ((3, 6, 20), (9, 2, 1), (1,), (1,), (0,), (0,), 3),
    # Depthwise, and images are large.
    ((2, 3, 34, 33), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 3),
    ((2, 3, 67, 66), (3, 1, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 3),
    # dW is larger than what an image has of X and dY.
    ((3, 24, 3, 2), (20, 24, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 1),
    ((3, 24, 5, 4), (20, 24, 1, 1), (2, 2), (1, 1), (0, 0), (0, 0), 1),
    ((3, 24, 4, 4), (20, 24, 3, 3), (1, 1), (1, 1), (1, 0), (1, 2), 1),
    ((3, 24, 7, 6), (20, 24, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
    ((3, 24, 9, 9), (20, 24, 3, 3), (2, 2), (2, 2), (1, 1), (1, 1), 1),
    ((3, 24, 4, 6), (20, 24, 2, 2), (2, 2), (1, 1), (0, 0), (0, 0), 1),
    ((3, 24, 6), (20, 24, 3), (1,), (2,), (2,), (1,), 1),
    ((1, 12, 3, 3, 4), (8, 12, 2, 2, 2), (1, 2, 1), (1, 1, 1), (0, 0, 1), (0, 1, 0), 1),
]


# What auto_pad says of such windows: (auto_pad, x, w, strides, begins, ends, group)
AUTO_PADDED = [
    ("SAME_UPPER", (2, 12, 9, 9), (12, 1, 7, 7), (1, 1), (3, 3), (3, 3), 12),
    ("SAME_LOWER", (2, 8, 9, 10), (6, 8, 4, 3), (1, 1), (2, 1), (1, 1), 1),
    ("SAME_UPPER", (2, 8, 9, 10), (6, 8, 4, 3), (1, 1), (1, 1), (2, 1), 1),
    ("SAME_UPPER", (2, 8, 9, 10), (6, 8, 3, 3), (2, 2), (1, 0), (1, 1), 1),
    ("SAME_LOWER", (2, 8, 9, 10), (6, 8, 3, 3), (2, 3), (1, 1), (1, 1), 1),
    ("SAME_UPPER", (2, 8, 9, 10), (6, 8, 1, 2), (3, 5), (0, 0), (0, 0), 1),
    ("VALID", (2, 8, 9, 10), (6, 8, 3, 3), (2, 2), (0, 0), (0, 0), 1),
]


def convolve(x, w, strides, dilations, begins, ends, group):
    """Y, and what gives dX and dW of dY."""
    axes = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends)])
    out = [(padded.shape[2 + a] - dilations[a] * (w.shape[2 + a] - 1) - 1) // strides[a] + 1 for a in range(axes)]
    views = []
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        views.append((tap, tuple(slice(tap[a] * dilations[a], tap[a] * dilations[a] + (out[a] - 1) * strides[a] + 1, strides[a])
                                 for a in range(axes))))
    n, g = x.shape[0], group
    grouped = (n, g, x.shape[1] // g, -1)

    def y():
        result = np.zeros((n, w.shape[0], *out))
        for tap, view in views:
            part = padded[(slice(None), slice(None), *view)].reshape(grouped)
            kernel = w[(slice(None), slice(None), *tap)].reshape(g, w.shape[0] // g, w.shape[1])
            result += np.einsum("goi,ngip->ngop", kernel, part).reshape(result.shape)
        return result

    def gradients(dy):
        flat = dy.reshape(n, g, w.shape[0] // g, -1)
        dx, dw = np.zeros_like(padded), np.zeros(w.shape)
        for tap, view in views:
            place = (slice(None), slice(None), *view)
            kernel = w[(slice(None), slice(None), *tap)].reshape(g, w.shape[0] // g, w.shape[1])
            dx[place] += np.einsum("goi,ngop->ngip", kernel, flat).reshape(dx[place].shape)
            part = padded[place].reshape(grouped)
            dw[(slice(None), slice(None), *tap)] = np.einsum("ngop,ngip->goi", flat, part).reshape(w.shape[:2])
        inner = tuple(slice(begins[a], begins[a] + x.shape[2 + a]) for a in range(axes))
        return dx[(slice(None), slice(None), *inner)], dw

    return out, y, gradients


def convolutions(rng):
    for number, (xs, ws, strides, dilations, begins, ends, group) in enumerate(CONVOLUTIONS):
        x, w = normal(rng, *xs), normal(rng, *ws)
        out, _, _ = convolve(x, w, strides, dilations, begins, ends, group)
        dy = normal(rng, xs[0], ws[0], *out)
        attributes = {"strides": list(strides), "dilations": list(dilations), "pads": [*begins, *ends],
                      "kernel_shape": list(ws[2:]), "group": group}

        def gradient(i, a=(strides, dilations, begins, ends, group)):
            dx, dw = convolve(i["x"], i["w"], *a)[2](i["dy"])
            return {"dx": dx, "dw": dw, "db": i["dy"].sum(tuple(k for k in range(i["dy"].ndim) if k != 1))}

        node = op("ConvGrad", ["dy", "x", "w"], ["dx", "dw", "db"], **attributes)
        case = Case(f"ConvGrad{number}{list(ws)}s{strides}d{dilations}g{group}", [node], {"dy": dy, "x": x, "w": w}, gradient,
                    [13, 15, 17, 18][number % 4])
        yield case
        symbolic = Case(case.name + "/symbolic", [node], case.inputs, gradient)
        names = ["n", xs[1], "h", "w", "d"][: len(xs)]
        symbolic.symbols = {"x": names, "dy": ["n", ws[0], "p", "q", "r"][: len(xs)]}
        yield symbolic
        batch = Case(case.name + "/batch", [node], case.inputs, gradient)
        batch.symbols = {"x": ["n", *xs[1:]], "dy": ["n", ws[0], *out]}
        yield batch
        for outputs in (["dx"], ["", "dw"]):
            part = Case(f"{case.name}/{outputs[-1]}", [node[:3] + (outputs,) + node[4:]], case.inputs,
                        lambda i, g=gradient, o=outputs[-1]: {o: g(i)[o]}, kernel=outputs == ["dx"])
            yield part
        # The same windows the other way round: X takes the place of dY.
        def transposed(i, a=(strides, dilations, begins, ends, group), xs=xs):
            out, _, gradients = convolve(i["dy"], i["w"], *a)
            y = convolve(i["dy"], i["w"], *a)[1]()
            dw = gradients(i["x"])[1]
            return {"dx": y, "dw": dw, "db": i["dy"].sum(tuple(k for k in range(i["dy"].ndim) if k != 1))}

        node = op("ConvTransposeGrad", ["dy", "x", "w"], ["dx", "dw", "db"], **attributes)
        yield Case(f"ConvTransposeGrad{number}{list(ws)}s{strides}d{dilations}g{group}", [node], {"dy": x, "x": dy, "w": w},
                   transposed, kernel=False)


def auto_padded(rng):
    for auto_pad, xs, ws, strides, begins, ends, group in AUTO_PADDED:
        windows = (strides, (1, 1), begins, ends, group)
        x, w = normal(rng, *xs), normal(rng, *ws)
        out, _, _ = convolve(x, w, *windows)
        dy = normal(rng, xs[0], ws[0], *out)
        node = op("ConvGrad", ["dy", "x", "w"], ["dx", "dw"], strides=list(strides), kernel_shape=list(ws[2:]), group=group,
                  auto_pad=auto_pad)

        def gradient(i, windows=windows):
            return dict(zip(("dx", "dw"), convolve(i["x"], i["w"], *windows)[2](i["dy"])))

        # The kernel reads pads that nobody wrote.
        yield Case(f"ConvGrad{auto_pad}{list(ws)}s{strides}", [node], {"dy": dy, "x": x, "w": w}, gradient, kernel=False)


# Pooling

def pools(rng):
    for shape, kernel, strides, pads, ceil in [
        ((2, 3, 12, 13), [3, 3], [2, 2], [1, 1, 1, 1], 0), ((2, 3, 12, 12), [2, 2], [2, 2], [0, 0, 0, 0], 0),
        ((1, 4, 9, 9), [3, 3], [1, 1], [1, 1, 1, 1], 0), ((2, 3, 11), [4], [3], [1, 1], 0), ((1, 2, 6, 6, 6), [2, 2, 2], [2, 2, 2], [0] * 6, 0),
        ((1, 2, 7, 7), [3, 3], [2, 2], [0, 0, 0, 0], 1),
    ]:
        x = normal(rng, *shape)
        axes = len(kernel)
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil}

        def windows(axis, shape=shape, kernel=kernel, strides=strides, pads=pads, ceil=ceil, axes=axes):
            free = shape[2 + axis] + pads[axis] + pads[axes + axis] - kernel[axis]
            count = (-(-free // strides[axis]) if ceil else free // strides[axis]) + 1
            for k in range(count):
                start = k * strides[axis] - pads[axis]
                yield slice(max(start, 0), min(start + kernel[axis], shape[2 + axis]))

        places = list(itertools.product(*(list(windows(axis)) for axis in range(axes))))
        out = tuple(len(list(windows(axis))) for axis in range(axes))

        def largest(i, places=places, axes=axes):
            dx = np.zeros_like(i["x"])
            flat = i["dy"].reshape(*i["dy"].shape[:2], -1)
            for n, c in np.ndindex(*dx.shape[:2]):
                for k, place in enumerate(places):
                    part = i["x"][(n, c, *place)]
                    at = np.unravel_index(np.argmax(part), part.shape)
                    dx[(n, c, *(p.start + a for p, a in zip(place, at)))] += flat[n, c, k]
            y = np.stack([i["x"][(slice(None), slice(None), *p)].max(tuple(range(2, 2 + axes))) for p in places], 2)
            return {"y": y.reshape(i["dy"].shape), "dx": dx}

        nodes = [op("MaxPool", ["x"], ["y", "at"], "", **attributes), op("MaxPoolGrad", ["dy", "at"], ["dx"], "", **attributes)]
        inputs = {"x": x, "dy": normal(rng, *shape[:2], *out)}
        for opset in (13, 17):
            case = Case(f"MaxPoolGrad{list(shape)}k{kernel}s{strides}c{ceil}@{opset}", nodes, inputs, largest, opset)
            yield case
        symbolic = Case(case.name + "/symbolic", nodes, inputs, largest, kernel=False)
        symbolic.symbols = {"x": ["n", *shape[1:]], "dy": ["n", shape[1], *out]}
        yield symbolic
        for counts in (0, 1):
            if ceil:
                continue

            def average(i, places=places, counts=counts, kernel=kernel, shape=shape):
                dx = np.zeros(shape)
                flat = i["dy"].reshape(*i["dy"].shape[:2], -1)
                for k, place in enumerate(places):
                    area = math.prod(kernel) if counts else math.prod(p.stop - p.start for p in place)
                    dx[(slice(None), slice(None), *place)] += (flat[:, :, k] / area).reshape(*shape[:2], *(1 for _ in place))
                return {"dx": dx}

            node = op("AveragePoolGrad", ["dy"], ["dx"], "", count_include_pad=counts, **attributes)
            # The kernel of 1.19.2 takes windows of three dimensions for others, and may write beyond its memory.
            yield Case(f"AveragePoolGrad{list(shape)}k{kernel}s{strides}i{counts}", [node], {"dy": inputs["dy"]}, average,
                       kernel=False, symbols={"dx": list(shape)})


# Cross-entropy

def losses(rng):
    for shape, labels_type in [((6, 10), np.int64), ((3, 5, 4, 2), np.int64), ((4, 7, 3), np.int32), ((512, 1000), np.int64)]:
        for reduction, weighted, ignored in [("mean", 0, None), ("mean", 1, 2), ("sum", 0, 1), ("none", 1, None), ("mean", 0, -100), ("mean", 0, "all")]:
            if shape[0] == 512 and (reduction, weighted, ignored) != ("mean", 0, -100):
                continue
            scores = normal(rng, *shape) * 3
            labels = rng.integers(0, shape[1], (shape[0], *shape[2:])).astype(labels_type)
            attributes = {"reduction": reduction}
            if ignored == "all":
                labels[:] = 3
                attributes["ignore_index"] = 3
            elif ignored is not None:
                labels.flat[::3] = ignored
                attributes["ignore_index"] = ignored
            inputs = {"scores": scores, "labels": labels}
            if weighted:
                inputs["weights"] = np.abs(normal(rng, shape[1]))

            def parts(i, ignored=attributes.get("ignore_index", -1)):
                s = i["scores"] if "scores" in i else i["lp"]
                m = s - s.max(1, keepdims=True)
                lp = m - np.log(np.exp(m).sum(1, keepdims=True))
                counts = i["labels"] != ignored
                safe = np.where(counts, i["labels"], 0)
                w = counts * (i["weights"][safe] if "weights" in i else 1.0)
                return lp, np.expand_dims(safe, 1), w

            def forward(i, parts=parts, reduction=reduction):
                lp, at, w = parts(i)
                each = -np.take_along_axis(lp, at, 1)[:, 0] * w
                loss = {"none": each, "sum": each.sum(), "mean": each.sum() / (w.sum() or 1)}[reduction]
                return {"loss": loss, "lp": lp}

            names = ["scores", "labels"] + ["weights"] * weighted
            name = f"{list(shape)}{reduction}w{weighted}i{ignored}{np.dtype(labels_type).name}"
            yield Case(f"SoftmaxCrossEntropyLoss{name}", [op("SoftmaxCrossEntropyLoss", names, ["loss", "lp"], "", **attributes)],
                       inputs, forward)

            def backward(i, parts=parts, reduction=reduction):
                _, at, w = parts(i)
                p = np.exp(i["lp"])
                hot = np.zeros_like(p)
                np.put_along_axis(hot, at, 1.0, 1)
                factor = w * (i["dl"] if reduction != "mean" else i["dl"] / (w.sum() or 1))
                return {"dx": (p - hot) * np.expand_dims(factor, 1)}

            lp = forward(wide(inputs))["lp"].astype(np.float32)
            more = {"dl": normal(rng, *labels.shape) if reduction == "none" else np.float32(1.5) * np.ones((), np.float32), "lp": lp, "labels": labels}
            if weighted:
                more["weights"] = inputs["weights"]
            names = ["dl", "lp", "labels"] + ["weights"] * weighted
            yield Case(f"SoftmaxCrossEntropyLossGrad{name}", [op("SoftmaxCrossEntropyLossGrad", names, ["dx"], **attributes)], more, backward)
            if ignored in (2, -100):
                internal = {"reduction": reduction}
                label = {"ignored": np.array(ignored, np.int64)}
                names = ["scores", "labels", "weights" if weighted else "", "ignored"]
                yield Case(f"SoftmaxCrossEntropyLossInternal{name}",
                           [op("SoftmaxCrossEntropyLossInternal", names, ["loss", "lp"], **internal)], {**inputs, **label}, forward)
                names = ["dl", "lp", "labels", "weights" if weighted else "", "ignored", "bias"]
                biased = {**more, **label, "bias": normal(rng, *shape)}
                yield Case(f"SoftmaxCrossEntropyLossInternalGrad{name}",
                           [op("SoftmaxCrossEntropyLossInternalGrad", names[:5], ["dx"], **internal)], {**more, **label}, backward)
                yield Case(f"SoftmaxCrossEntropyLossInternalGrad{name}/bias",
                           [op("SoftmaxCrossEntropyLossInternalGrad", names, ["dx"], **internal)], biased,
                           lambda i, b=backward: {"dx": b(i)["dx"] + i["bias"]}, kernel=False)


# Gather and its like: many indices are there several times.

def gathers(rng):
    for shape, at, axis, kind in [((50, 16), (4, 200), 0, np.int64), ((10, 64), (3000,), 0, np.int32), ((3, 20, 5), (4, 6), 1, np.int64),
                                  ((3, 5, 7), (), 1, np.int64), ((4, 9), (12,), -1, np.int64)]:
        place = axis % len(shape)
        indices = rng.integers(0, shape[axis], at).astype(kind)
        dy = normal(rng, *shape[:place], *at, *shape[place + 1:])

        def gradient(i, shape=shape, place=place, at=at):
            dx = np.zeros(shape)
            moved = np.moveaxis(dx, place, 0)
            flat = i["dy"].reshape(*shape[:place], -1, *shape[place + 1:])
            np.add.at(moved, np.ravel(i["at"]) % shape[place], np.moveaxis(flat, place, 0))
            return {"dx": dx}

        node = op("GatherGrad", ["shape", "at", "dy"], ["dx"], axis=axis)
        inputs = {"shape": np.array(shape, np.int64), "at": indices, "dy": dy}
        for opset in (13, 18):
            yield Case(f"GatherGrad{list(shape)}{list(at)}axis{axis}@{opset}", [node], inputs, gradient, opset)
        negative = dict(inputs, at=(indices - shape[axis] * (rng.random(at) < 0.5)).astype(kind))
        yield Case(f"GatherGrad{list(shape)}{list(at)}axis{axis}/negative", [node], negative, gradient, kernel=False)
    for shape, at, axis in [((4, 9, 5), (4, 20, 5), 1), ((6, 3), (6, 8), -1), ((5, 4), (3, 4), 0)]:
        indices = rng.integers(0, shape[axis], at)

        def elements(i, shape=shape, axis=axis):
            dx = np.zeros(shape)
            grid = list(np.indices(i["at"].shape))
            grid[axis] = i["at"]
            np.add.at(dx, tuple(grid), i["dy"])
            return {"dx": dx}

        yield Case(f"GatherElementsGrad{list(shape)}{list(at)}axis{axis}",
                   [op("GatherElementsGrad", ["dy", "shape", "at"], ["dx"], axis=axis)],
                   {"dy": normal(rng, *at), "shape": np.array(shape, np.int64), "at": indices}, elements)
    for shape, at in [((6, 5, 4), (30, 1)), ((6, 5, 4), (7, 9, 2)), ((6, 5), (40, 2))]:
        depth = at[-1]
        indices = np.stack([rng.integers(0, size, at[:-1]) for size in shape[:depth]], -1)

        def slices(i, shape=shape, depth=depth):
            dx = np.zeros(shape)
            np.add.at(dx, tuple(np.moveaxis(i["at"], -1, 0)), i["dy"])
            return {"dx": dx}

        node = op("GatherNDGrad", ["shape", "at", "dy"], ["dx"], batch_dims=0)
        inputs = {"at": indices, "dy": normal(rng, *at[:-1], *shape[depth:])}
        sizes = {"shape": np.array(shape, np.int64)}
        yield Case(f"GatherNDGrad{list(shape)}{list(at)}", [node], inputs, slices, constants=sizes, symbols={"dx": list(shape)})
        yield Case(f"GatherNDGrad{list(shape)}{list(at)}/symbolic", [node], {**inputs, **sizes}, slices,
                   symbols={"dx": [shape[0], "n", *shape[2:]]})


def slices(rng):
    big = np.iinfo(np.int64).max
    for shape, starts, ends, axes, steps in [
        ((5, 8), [1], [6], [1], [1]), ((5, 8), [-3], [big], [-1], [1]), ((5, 8), [0, 2], [3, 7], None, None), ((4, 9, 6), [2, 1], [9, 5], [1, 2], [2, 3]),
        ((4, 9), [8], [-100], [1], [-2]), ((4, 9), [-1, 1], [-big, 3], [1, 0], [-1, 1]), ((7, 3), [5], [2], [0], [-1]),
        ((3, 8), [0], [big], [-1], [2]), ((3, 8), [1], [big], [1], [2]), ((7, 3, 2), [-6], [-1], [0], [3]),
    ]:
        lists = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
        lists = {name: np.array(value, np.int64) for name, value in lists.items() if value is not None}
        place = [slice(None)] * len(shape)
        for k, axis in enumerate(axes or range(len(starts))):
            step = steps[k] if steps else 1
            end = None if step < 0 and ends[k] < -shape[axis] else ends[k]
            place[axis] = slice(starts[k], end, step)
        dy = normal(rng, *np.zeros(shape)[tuple(place)].shape)

        def gradient(i, shape=shape, place=tuple(place)):
            dx = np.zeros(shape)
            dx[place] = i["dy"]
            return {"dx": dx}

        node = op("SliceGrad", ["dy", "shape", *lists], ["dx"])
        name = f"SliceGrad{list(shape)}{starts}{axes}{steps}"
        yield Case(name, [node], {"dy": dy}, gradient, 13, {"shape": np.array(shape, np.int64), **lists}, {"dx": list(shape)})
        if not steps or set(steps) == {1}:
            ones = {"steps": lists["steps"]} if steps else {}
            yield Case(name + "/computed", [node], {"dy": dy, "shape": np.array(shape, np.int64),
                       **{k: v for k, v in lists.items() if k != "steps"}}, gradient, constants=ones)
        if not steps or min(steps) > 0:
            fixed = Case(name + "/symbolic", [node], {"dy": dy, "shape": np.array(shape, np.int64)}, gradient, constants=dict(lists))
            fixed.symbols = {"dy": ["a", "b", "c"][: len(shape)]}
            yield fixed


def arithmetic(rng):
    for a, b in [((3, 4), (3, 4)), ((2, 3, 4), (3, 1)), ((1, 5), (4, 1)), ((6, 2, 2), ()), ((4,), (2, 3, 4)), ((2, 3, 4), (2, 1, 1))]:
        x, y = normal(rng, *a), normal(rng, *b)
        y = np.where(np.abs(y) < 0.2, 0.5, y).astype(np.float32) if y.shape else np.float32(0.7) * np.ones((), np.float32)
        dy = normal(rng, *np.broadcast_shapes(a, b))

        def like(value, shape):
            value = value.sum(tuple(range(value.ndim - len(shape))))
            axes = tuple(k for k, size in enumerate(shape) if size == 1 and value.shape[k] != 1)
            return value.sum(axes, keepdims=True) if axes else value

        def gradient(i, a=a, b=b):
            return {"da": like(i["dy"] / i["b"], a), "db": like(-i["dy"] * i["a"] / i["b"] ** 2, b)}

        node = op("DivGrad", ["dy", "a", "b"], ["da", "db"])
        case = Case(f"DivGrad{list(a)}{list(b)}", [node], {"dy": dy, "a": x, "b": y}, gradient)
        yield case
        names = iter("abcdefghijk")
        symbolic = Case(case.name + "/symbolic", [node], case.inputs, gradient)
        symbolic.symbols = {k: [next(names) for _ in case.inputs[k].shape] for k in ("dy", "a", "b")}
        yield symbolic

        def args(i, a=a, b=b):
            out = np.broadcast_shapes(a, b)
            pad = lambda s: (0,) * (len(out) - len(s)) + tuple(s)
            mine, theirs = pad(a), pad(b)
            of = lambda p, q: np.array(sorted(k for k in range(len(out)) if p[k] == 0 or p[k] == 1 and q[k] not in (0, 1)), np.int64)
            return {"ra": of(mine, theirs), "rb": of(theirs, mine)}

        if a and b:
            nodes = [op("Shape", ["a"], ["sa"], ""), op("Shape", ["b"], ["sb"], ""), op("BroadcastGradientArgs", ["sa", "sb"], ["ra", "rb"])]
            case = Case(f"BroadcastGradientArgs{list(a)}{list(b)}", nodes, {"a": x, "b": y}, args)
            case.sorted = True
            yield case
    x = normal(rng, 5, 6)
    for down in (0, 1):
        for scale in (np.array(3.7, np.float32), np.array([7], np.int64)):
            yield Case(f"Scale{down}{scale.dtype}", [op("Scale", ["x", "s"], ["y"], scale_down=down)], {"x": x, "s": scale},
                       lambda i, down=down: {"y": i["x"] / np.float32(i["s"]).reshape(()) if down else i["x"] * np.float32(i["s"]).reshape(())})
    for axes, keep, noop in [([0], 1, 0), ([1], 0, 0), ([0, 1], 0, 0), ([], 1, 1)]:
        yield Case(f"ReduceSumTraining{axes}{keep}{noop}", [op("ReduceSumTraining", ["x", "a"], ["y"], keepdims=keep, noop_with_empty_axes=noop)],
                   {"x": x, "a": np.array(axes, np.int64)},
                   lambda i, axes=axes, keep=keep: {"y": i["x"].sum(tuple(axes), keepdims=bool(keep)) if axes else i["x"]})
    inputs = {"a": x, "b": normal(rng, 7), "c": normal(rng, 2, 3, 4)}
    yield Case("ReduceAllL2", [op("ReduceAllL2", ["a", "b", "c"], ["y"])], inputs,
               lambda i: {"y": np.sqrt(sum(np.square(v).sum() for v in i.values()))})


def others(rng):
    x, dy = normal(rng, 8, 200), normal(rng, 8, 200)
    mask = rng.random((8, 200)) > 0.3
    for ratio, mode in [(0.3, True), (0.0, True), (0.3, None), (0.25, False)]:
        inputs = {"dy": dy, "mask": mask if mode is not False else np.ones_like(mask), "ratio": np.array(ratio, np.float32)}
        names = ["dy", "mask", "ratio"]
        if mode is not None:
            inputs["mode"] = np.array(mode)
            names.append("mode")
        # Where the ratio is 0, so is what is dropped.
        if ratio == 0:
            inputs["mask"] = np.ones_like(mask)
        yield Case(f"DropoutGrad{ratio}{mode}", [op("DropoutGrad", names, ["dx"])], inputs,
                   lambda i, mode=mode: {"dx": i["dy"] if mode is False else i["dy"] * i["mask"] / (1 - i["ratio"])}, kernel=mode is not False)
    for shapes, axis in [([(2, 3), (4, 3)], 0), ([(2, 3), (2, 5), (2, 1)], 1), ([(2, 3, 1), (2, 3, 4)], -1)]:
        inputs = {f"x{k}": normal(rng, *shape) for k, shape in enumerate(shapes)}
        nodes = [op("ConcatTraining", list(inputs), ["y", "sizes"], axis=axis),
                 op("SplitTraining", ["y", "sizes"], [f"z{k}" for k in range(len(shapes))], axis=axis)]

        def joined(i, axis=axis, shapes=shapes):
            parts = {f"z{k}": i[f"x{k}"] for k in range(len(shapes))}
            return {"y": np.concatenate(list(i.values()), axis), "sizes": np.array([s[axis] for s in shapes]), **parts}

        case = Case(f"ConcatTraining{shapes}{axis}", nodes, inputs, joined, 13)
        yield case
        symbolic = Case(case.name + "/symbolic", nodes, inputs, joined, 18)
        names = iter("abcdefghijklmn")
        symbolic.symbols = {k: [next(names) for _ in v.shape] for k, v in inputs.items()}
        yield symbolic
    for overwrite, shape in itertools.product((True, False), [(5, 4), (70, 64), (4100,), (64, 16, 2, 3)]):
        buffer = normal(rng, *shape)
        # What is overwritten may be anything.
        buffer.flat[[0, -1]] = np.nan if overwrite else 1
        inputs = {"buffer": buffer, "value": normal(rng, *shape), "overwrite": np.array([overwrite])}
        yield Case(f"InPlaceAccumulatorV2{overwrite}{shape}", [op("InPlaceAccumulatorV2", ["buffer", "value", "overwrite"], ["done"])], inputs,
                   lambda i, o=overwrite: {"done": i["value"] if o else i["buffer"] + i["value"]}, kernel=False)
    inputs = {"old": normal(rng, 5, 4), "value": normal(rng, 5, 4)}
    yield Case("InPlaceAccumulator", [op("InPlaceAccumulator", ["old", "value"], ["sum"])], inputs,
               lambda i: {"sum": i["old"] + i["value"]}, kernel=False)
    yield Case("FakeQuantGrad", [op("FakeQuantGrad", ["dy", "mask"], ["dx"])], {"dy": dy, "mask": mask}, lambda i: {"dx": i["dy"] * i["mask"]})
    for mode, transform, nearest, sizes in [
        ("linear", "align_corners", "floor", (7, 9)), ("linear", "half_pixel", "floor", (11, 6)), ("linear", "asymmetric", "floor", (10, 10)),
        ("nearest", "asymmetric", "floor", (10, 12)), ("linear", "pytorch_half_pixel", "floor", (1, 9)),
    ]:
        shape = (2, 3, 5, 6)
        scales = np.array([1, 1, sizes[0] / 5, sizes[1] / 6], np.float32)

        def matrix(size, to, mode=mode, transform=transform):
            m = np.zeros((size, to))
            for o in range(to):
                scale = to / size
                at = {"align_corners": o * (size - 1) / max(to - 1, 1), "half_pixel": (o + 0.5) / scale - 0.5, "asymmetric": o / scale,
                      "pytorch_half_pixel": (o + 0.5) / scale - 0.5 if to > 1 else 0}[transform]
                at = min(max(at, 0), size - 1)
                low = min(int(at + 1e-6), size - 1)
                if mode == "nearest":
                    m[low, o] += 1
                else:
                    m[low, o] += 1 - (at - low)
                    m[min(low + 1, size - 1), o] += at - low
            return m

        def gradient(i, matrix=matrix, sizes=sizes):
            return {"dx": np.einsum("ia,ncab,jb->ncij", matrix(5, sizes[0]), i["dy"], matrix(6, sizes[1]))}

        for by_scales in (True, False):
            inputs = {"dy": normal(rng, 2, 3, *sizes), "x": normal(rng, *shape)}
            names = ["dy", "x", "", "scales"] if by_scales else ["dy", "x"]
            case = Case(f"ResizeGrad{mode}{transform}{sizes}{by_scales}",
                        [op("ResizeGrad", names, ["dx"], mode=mode, coordinate_transformation_mode=transform, nearest_mode=nearest)],
                        inputs, gradient, kernel=False, floor=1e-6)
            if by_scales:
                case.constants = {"scales": scales}
            yield case


# Recurrent layers: (sequence, batch, input, hidden, direction, bias, first states)

RECURRENT = [
    (5, 3, 4, 6, "forward", True, True),
    (9, 2, 7, 5, "forward", False, False),
    (1, 4, 3, 8, "forward", True, False),
    (40, 16, 64, 128, "forward", True, True),
    (6, 3, 4, 5, "reverse", True, True),
    (7, 2, 5, 4, "bidirectional", True, True),
    (4, 3, 6, 3, "bidirectional", False, False),
]


def backwards(direction):
    """By direction: does it begin with the last step?"""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]


def in_turn(count, is_backwards):
    """Each step, and the one before it."""
    steps = list(range(count))[:: -1 if is_backwards else 1]
    return list(zip(steps, [None, *steps]))


def lstm(i, direction):
    """Y, last Y, last C, all C and the gates i, o, f, c."""
    s, n, h = i["x"].shape[0], i["x"].shape[1], i["r"].shape[2]
    flags = backwards(direction)
    y, cells, gates = (np.zeros((s, len(flags), n, k)) for k in (h, h, 4 * h))
    last = [np.zeros((len(flags), n, h)) for _ in range(2)]
    for d, flag in enumerate(flags):
        bias = i["b"][d, : 4 * h] + i["b"][d, 4 * h :] if "b" in i else 0
        before, cell = (i[k][d] if k in i else np.zeros((n, h)) for k in ("h0", "c0"))
        for t, _ in in_turn(s, flag):
            z = i["x"][t] @ i["w"][d].T + before @ i["r"][d].T + bias
            gates[t, d] = np.concatenate([sigmoid(z[:, : 3 * h]), np.tanh(z[:, 3 * h :])], 1)
            let_in, out, forget, new = np.split(gates[t, d], 4, 1)
            cell = forget * cell + let_in * new
            before = out * np.tanh(cell)
            y[t, d], cells[t, d] = before, cell
        last[0][d], last[1][d] = before, cell
    return {"y": y, "yh": last[0], "yc": last[1], "cells": cells, "gates": gates}


def lstm_gradient(i, direction):
    s, n, h = i["x"].shape[0], i["x"].shape[1], i["r"].shape[2]
    dx, dw, dr = (np.zeros(i[k].shape) for k in ("x", "w", "r"))
    flags = backwards(direction)
    db, dh0, dc0 = np.zeros((len(flags), 8 * h)), np.zeros((len(flags), n, h)), np.zeros((len(flags), n, h))
    for d, flag in enumerate(flags):
        dh, dc = (i[k][d].copy() if k in i else np.zeros((n, h)) for k in ("dh", "dc"))
        for t, previous in reversed(in_turn(s, flag)):
            let_in, out, forget, new = np.split(i["gates"][t, d], 4, 1)
            before, old = ((i[k][previous, d] if previous is not None else i[first][d] if first in i else np.zeros((n, h)))
                           for k, first in (("y", "h0"), ("cells", "c0")))
            dh = dh + (i["dy"][t, d] if "dy" in i else 0)
            bent = np.tanh(i["cells"][t, d])
            dc = dc + dh * out * (1 - bent**2)
            dz = np.concatenate([dc * new * let_in * (1 - let_in), dh * bent * out * (1 - out),
                                 dc * old * forget * (1 - forget), dc * let_in * (1 - new**2)], 1)
            dc = dc * forget
            dh = dz @ i["r"][d]
            dx[t] += dz @ i["w"][d]
            dw[d] += dz.T @ i["x"][t]
            dr[d] += dz.T @ before
            db[d] += np.tile(dz.sum(0), 2)
        dh0[d], dc0[d] = dh, dc
    return {"dx": dx, "dw": dw, "dr": dr, "db": db, "dh0": dh0, "dc0": dc0}


def gru(i, direction, late):
    """Y, last Y and the gates z, r, h."""
    s, n, h = i["x"].shape[0], i["x"].shape[1], i["r"].shape[2]
    flags = backwards(direction)
    y, gates, last = np.zeros((s, len(flags), n, h)), np.zeros((s, len(flags), n, 3 * h)), np.zeros((len(flags), n, h))
    for d, flag in enumerate(flags):
        bx, bh = np.split(i["b"][d], 2) if "b" in i else np.zeros((2, 3 * h))
        before = i["h0"][d] if "h0" in i else np.zeros((n, h))
        w, r = i["w"][d], i["r"][d]
        for t, _ in in_turn(s, flag):
            of_x = i["x"][t] @ w.T + bx
            both = sigmoid(of_x[:, : 2 * h] + before @ r[: 2 * h].T + bh[: 2 * h])
            update, reset = np.split(both, 2, 1)
            if late:
                within = reset * (before @ r[2 * h :].T + bh[2 * h :])
            else:
                within = (reset * before) @ r[2 * h :].T + bh[2 * h :]
            new = np.tanh(of_x[:, 2 * h :] + within)
            before = (1 - update) * new + update * before
            y[t, d], gates[t, d] = before, np.concatenate([both, new], 1)
        last[d] = before
    return {"y": y, "yh": last, "gates": gates}


def gru_gradient(i, direction, late):
    s, n, h = i["x"].shape[0], i["x"].shape[1], i["r"].shape[2]
    dx, dw, dr = (np.zeros(i[k].shape) for k in ("x", "w", "r"))
    flags = backwards(direction)
    db, dh0 = np.zeros((len(flags), 6 * h)), np.zeros((len(flags), n, h))
    for d, flag in enumerate(flags):
        bias = i["b"][d, 5 * h :] if "b" in i else 0
        dh = i["dh"][d].copy() if "dh" in i else np.zeros((n, h))
        w, r = i["w"][d], i["r"][d]
        for t, previous in reversed(in_turn(s, flag)):
            update, reset, new = np.split(i["gates"][t, d], 3, 1)
            before = i["y"][previous, d] if previous is not None else i["h0"][d] if "h0" in i else np.zeros((n, h))
            dh = dh + (i["dy"][t, d] if "dy" in i else 0)
            dz = dh * (before - new) * update * (1 - update)
            dn = dh * (1 - update) * (1 - new**2)
            if late:
                ds = dn * (before @ r[2 * h :].T + bias) * reset * (1 - reset)
                through, of_new = (dn * reset) @ r[2 * h :], (dn * reset).T @ before
            else:
                product = dn @ r[2 * h :]
                ds = product * before * reset * (1 - reset)
                through, of_new = product * reset, dn.T @ (reset * before)
            both = np.concatenate([dz, ds], 1)
            all_of = np.concatenate([both, dn], 1)
            dh = dh * update + both @ r[: 2 * h] + through
            dx[t] += all_of @ w
            dw[d] += all_of.T @ i["x"][t]
            dr[d] += np.concatenate([both.T @ before, of_new])
            db[d] += np.concatenate([all_of.sum(0), both.sum(0), (dn * reset if late else dn).sum(0)])
        dh0[d] = dh
    return {"dx": dx, "dw": dw, "dr": dr, "db": db, "dh0": dh0}


def recurrent_inputs(rng, gates, shape):
    """What a layer reads."""
    s, n, width, h, direction, bias, states = shape
    count = len(backwards(direction))
    inputs = {"x": normal(rng, s, n, width), "w": normal(rng, count, gates * h, width), "r": normal(rng, count, gates * h, h)}
    inputs["r"] *= np.float32(h**-0.5)
    inputs["w"] *= np.float32(width**-0.5)
    if bias:
        inputs["b"] = normal(rng, count, 2 * gates * h)
    if states:
        inputs["h0"] = normal(rng, count, n, h)
        if gates == 4:
            inputs["c0"] = normal(rng, count, n, h)
    return inputs


def layers(rng):
    for shape in RECURRENT:
        s, n, width, h, direction, _, states = shape
        count, has_kernel = len(backwards(direction)), direction == "forward"
        kinds = [("LSTM", 4, {}, lstm, lstm_gradient)]
        for late in (0, 1):
            kinds.append(("GRU", 3, {"linear_before_reset": late}, lambda i, d, late=late: gru(i, d, late),
                          lambda i, d, late=late: gru_gradient(i, d, late)))
        for name, gates, attributes, forward, backward in kinds:
            attributes = {"hidden_size": h, "direction": direction, **attributes}
            inputs = recurrent_inputs(rng, gates, shape)
            label = f"[{s},{n},{width},{h}]{direction}{attributes.get('linear_before_reset', '')}"

            states_of = ["h0", "c0"] if gates == 4 else ["h0"]
            results = ["y", "yh", "yc", "cells", "gates"] if gates == 4 else ["y", "yh", "gates"]
            read = [k if k in inputs else "" for k in ("x", "w", "r", "b", "", *states_of)]
            layer = op(f"{name}Training", read, results, **attributes)
            case = Case(f"{name}Training{label}", [layer], inputs, lambda i, f=forward, d=direction: f(i, d), kernel=has_kernel)
            yield case
            if width == 4 and has_kernel:
                yield Case(f"{case.name}/symbolic", [layer], inputs, case.reference, 14,
                           symbols={"x": ["s", "n", 4], **{k: [1, "n", h] for k in states_of}})
            outputs = ["dx", "dw", "dr", "db", "dh0"] + (["dc0"] if gates == 4 else [])
            for which in ("all", "last", "steps"):
                further = {"dy": normal(rng, s, count, n, h), "dh": normal(rng, count, n, h), "dc": normal(rng, count, n, h)}
                wanted = {"all": {"dy", "dh", "dc"}, "last": {"dh", "dc"}, "steps": {"dy"}}[which]
                wanted = {k for k in wanted if k != "dc" or gates == 4}
                further = {k: further[k] for k in wanted}
                if which != "all" and s == 40:
                    continue
                found = forward(wide(inputs), direction)
                # As the kernel of 1.19.2 reads them: LSTMGrad has no bias.
                kept = {k: found[k].astype(np.float32) for k in ("y", "cells", "gates") if k in found}
                before = ["x", "w", "r", *([] if gates == 4 else ["b"]), "", *states_of]
                fed = {**inputs, **kept, **further}
                read = [k if k in fed else "" for k in (*before, *kept, "dy", "dh", *(["dc"] if gates == 4 else []))]
                fed = {k: v for k, v in fed.items() if k in read}
                node = op(f"{name}Grad", read, outputs, **attributes)
                yield Case(f"{name}Grad{label}/{which}", [node], fed, lambda i, f=backward, d=direction: f(i, d), kernel=has_kernel)
                # The gates are those of a layer in the same graph.
                both = {**inputs, **further}

                def whole(i, f=forward, b=backward, d=direction):
                    result = f(i, d)
                    return {**b({**i, **result}, d), "y": result["y"]}

                # Both round the gates: a kernel's own are off by 1.1e-6.
                case = Case(f"{name}Grad{label}/{which}/whole", [layer, node], both, whole, kernel=has_kernel, floor=1e-6)
                yield case
                if width == 4 and has_kernel:
                    yield Case(f"{case.name}/symbolic", [layer, node], both, whole, 15,
                               floor=1e-6, symbols={"x": ["s", "n", 4], "dy": ["s", 1, "n", h], **{k: [1, "n", h] for k in states_of},
                                        **{k: [1, "n", h] for k in ("dh", "dc") if k in both}})


def cases():
    """All cases, the same in every call."""
    for family in (activations, softmaxes, batch_norms, layer_norms, convolutions, auto_padded, pools, losses, gathers, slices, arithmetic, others, layers):
        rng = np.random.default_rng(list(family.__name__.encode()))
        yield from family(rng)
