"""Deterministic, sane contents for every input of a training graph.

The values depend on the input's name, shape and type only, so that an original and its rewritten
form are fed the same. "Sane" keeps activations finite through a hundred layers: weights are scaled
by their fan-in, scales are near one, labels and token ids lie in the range of what reads them.
"""

import hashlib

import numpy as np
import onnx

BUFFER_SUFFIX = "_grad.accumulation.buffer"
PASS_ON = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "PassThrough", "Transpose"}


class Inputs:
    """What must be known of a graph to fill its inputs."""

    def __init__(self, model, dims):
        graph = model.graph
        self.dims = dims
        initializers = {tensor.name for tensor in graph.initializer}
        self.infos = [info for info in graph.input if info.name not in initializers]
        self.readers = {}
        for node in graph.node:
            for position, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, position))
        self.shapes = {}
        for info in list(graph.value_info) + list(graph.input) + list(graph.output):
            if info.type.tensor_type.HasField("shape"):
                self.shapes[info.name] = [
                    dim.dim_value if dim.HasField("dim_value") else dims.get(dim.dim_param)
                    for dim in info.type.tensor_type.shape.dim
                ]
        for tensor in graph.initializer:
            self.shapes[tensor.name] = list(tensor.dims)
        self.buffers = {info.name for info in self.infos if info.name.endswith(BUFFER_SUFFIX)}

    def shape(self, info):
        shape = []
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            elif dim.dim_param in self.dims:
                shape.append(self.dims[dim.dim_param])
            else:
                raise SystemExit(f"input {info.name}: bind {dim.dim_param or 'an unnamed dimension'} with --dim")
        return shape

    def make(self):
        """Every input's array, by name, in the graph's order."""
        return {info.name: self._array(info) for info in self.infos}

    def _array(self, info):
        name, shape = info.name, self.shape(info)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        random = np.random.default_rng(seed)
        if name in self.buffers:
            return np.zeros(shape, dtype)
        if dtype == np.bool_:
            return np.ones(shape, dtype)  # lazy_reset_grad
        if np.issubdtype(dtype, np.integer):
            return random.integers(0, self._integer_range(name), shape).astype(dtype)
        values = random.random(shape, np.float32)
        values -= 0.5
        kind = self._kind(name)
        if kind == "scale":
            values *= 0.2
            values += 1
        elif kind == "bias":
            values *= 0.1
        elif kind == "mean":
            values *= 0.1
        elif kind == "variance":
            values += 1
        elif kind == "weight":
            # Uniform with variance 2 / fan-in (He et al. 2015); the variance of [-1/2, 1/2) is 1/12.
            values *= (24 / self._fan_in(name, shape)) ** 0.5
        else:
            values *= 2
        return values if dtype == np.float32 else values.astype(dtype)

    def _kind(self, name):
        for node, position in self.readers.get(name, []):
            operator = node.op_type
            if operator in ("BatchNormInternal", "BatchNormalization"):
                return ("batch", "scale", "bias", "mean", "variance")[position]
            if operator in ("LayerNormalization", "SimplifiedLayerNormalization", "GroupNorm"):
                return ("batch", "scale", "bias")[position]
        if name.replace("_grad", "") + BUFFER_SUFFIX not in self.buffers:
            return "batch"
        return "bias" if len(self.shapes.get(name, ())) < 2 else "weight"

    def _fan_in(self, name, shape):
        for node, position in self.readers.get(name, []):
            if node.op_type == "Conv" and position == 1:
                return int(np.prod(shape[1:]))
            if node.op_type == "Gather" and position == 0:
                return 1200  # a table of vectors: small entries, as transformers start with
        return max(shape[1:], default=1)

    def _integer_range(self, name):
        """One more than the largest id that the readers of `name` accept."""
        seen, names = {name}, [name]
        bounds = []
        while names:
            for node, position in self.readers.get(names.pop(), []):
                scores = self.shapes.get(node.input[0])
                if node.op_type in ("Gather", "GatherElements") and position == 1:
                    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                    bounds.append(scores[axis] if scores else None)
                elif node.op_type.startswith("SoftmaxCrossEntropyLoss") and not node.op_type.endswith("Grad"):
                    bounds.append(scores[1] if position == 1 and scores and len(scores) > 1 else None)
                elif node.op_type in PASS_ON and position == 0:
                    for output in node.output:
                        if output not in seen:
                            seen.add(output)
                            names.append(output)
        known = [bound for bound in bounds if bound]
        return min(known, default=2)
