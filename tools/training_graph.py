"""Builds training graphs layer by layer: forward nodes first, then their gradients in reverse with ONNX
Runtime's gradient operators, then an accumulator for each weight, as artifacts.generate_artifacts does.

All shapes are concrete. Weights and accumulation buffers are graph inputs, so files stay small.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class TrainingGraph:
    """Tensors are their names. Every layer returns what it puts out and remembers its gradient."""

    def __init__(self, name):
        self.name = name
        self.nodes = []
        self.shapes = {}
        self.inputs = []
        self.outputs = []
        self.initializers = {}
        self.weights = []
        self._values = []
        self._tape = []
        self._counts = {}
        self._constants = {}
        self._read = set()
        self._unwanted = set()

    # What the caller owns

    def input(self, name, shape, element=FLOAT):
        self.shapes[name] = list(shape)
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def weight(self, name, *shape):
        self.weights.append(self.input(name, shape))
        return name

    def constant(self, value):
        """An initializer; equal ones are shared."""
        array = np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._free("constant")
            self._constants[key] = name
            self.shapes[name] = list(array.shape)
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    # Layers

    def unary(self, operator, x):
        """Relu, Sigmoid, Tanh or Gelu."""
        domain = MICROSOFT if operator == "Gelu" else ""
        y = self.node(operator, [x], [self.shapes[x]], domain=domain)
        reads = x if operator == "Gelu" else y

        def gradient(dy):
            return {x: self.node(operator + "Grad", [dy, reads], [self.shapes[x]], domain=MICROSOFT)}

        return self._layer(y, gradient)

    def softmax(self, x):
        y = self.node("Softmax", [x], [self.shapes[x]], axis=-1)

        def gradient(dy):
            return {x: self.node("SoftmaxGrad_13", [dy, y], [self.shapes[x]], domain=MICROSOFT, axis=-1)}

        return self._layer(y, gradient)

    def add(self, a, b):
        """Of equal shapes, or with a bias b for the last axis."""
        y = self.node("Add", [a, b], [self.shapes[a]])

        def gradient(dy):
            parts = {a: self.node("Identity", [dy], [self.shapes[a]])}
            if self.shapes[a] == self.shapes[b]:
                parts[b] = self.node("Identity", [dy], [self.shapes[b]])
            else:
                axes = self.constant(np.arange(len(self.shapes[a]) - 1))
                parts[b] = self.node("ReduceSum", [dy, axes], [self.shapes[b]], keepdims=0)
            return parts

        return self._layer(y, gradient)

    def multiply(self, a, b):
        y = self.node("Mul", [a, b], [self.shapes[a]])
        return self._layer(y, lambda dy: {
            a: self.node("Mul", [dy, b], [self.shapes[a]]),
            b: self.node("Mul", [dy, a], [self.shapes[b]]),
        })

    def scale(self, x, factor):
        """Times a number."""
        factor = self.constant(np.float32(factor))
        y = self.node("Mul", [x, factor], [self.shapes[x]])
        return self._layer(y, lambda dy: {x: self.node("Mul", [dy, factor], [self.shapes[x]])})

    def linear(self, x, weight, bias=None):
        """Rows times a transposed weight."""
        rows, width = self.shapes[x][0], self.shapes[weight][0]
        inputs = [x, weight] + ([bias] if bias else [])
        y = self.node("Gemm", inputs, [[rows, width]], **gemm(0, 1, 1.0 if bias else 0.0))

        def gradient(dy):
            parts = {
                x: self.node("Gemm", [dy, weight], [self.shapes[x]], **gemm(0, 0, 0.0)),
                weight: self.node("Gemm", [dy, x], [self.shapes[weight]], **gemm(1, 0, 0.0)),
            }
            if bias:
                axes = self.constant(np.array([0]))
                parts[bias] = self.node("ReduceSum", [dy, axes], [self.shapes[bias]], keepdims=0)
            return parts

        return self._layer(y, gradient)

    def matmul(self, a, b):
        """Matrices in a and b, or matrices in a times one matrix b."""
        shape = self.shapes[a][:-1] + self.shapes[b][-1:]
        y = self.node("MatMul", [a, b], [shape])

        def gradient(dy):
            parts = {a: self.node("FusedMatMul", [dy, b], [self.shapes[a]], domain=MICROSOFT, **fused(0, 1))}
            if len(self.shapes[b]) == len(shape):
                parts[b] = self.node("FusedMatMul", [a, dy], [self.shapes[b]], domain=MICROSOFT, **fused(1, 0))
            else:
                flat = [self.node("Reshape", [of, self.constant(np.array([-1, self.shapes[of][-1]]))],
                                  [[math.prod(self.shapes[of][:-1]), self.shapes[of][-1]]], allowzero=0)
                        for of in (a, dy)]
                parts[b] = self.node("Gemm", flat, [self.shapes[b]], **gemm(1, 0, 0.0))
            return parts

        return self._layer(y, gradient)

    def conv(self, x, weight, stride=1):
        """Without bias; padded so that stride 1 keeps the size."""
        batch, _, *size = self.shapes[x]
        window = self.shapes[weight][2]
        attributes = dict(dilations=[1, 1], group=1, kernel_shape=[window] * 2,
                          pads=[window // 2] * 4, strides=[stride] * 2)
        shape = [batch, self.shapes[weight][0]] + [-(-edge // stride) for edge in size]
        y = self.node("Conv", [x, weight], [shape], **attributes)

        def gradient(dy):
            if not self._needs(x):
                made = self.node("ConvGrad", [dy, x, weight], [None, self.shapes[weight]], domain=MICROSOFT, **attributes)
                return {weight: made}
            shapes = [self.shapes[x], self.shapes[weight]]
            return dict(zip((x, weight), self.node("ConvGrad", [dy, x, weight], shapes, domain=MICROSOFT, **attributes)))

        return self._layer(y, gradient)

    def batch_norm(self, x, name):
        """With a scale, a shift and running statistics of its own."""
        channels = [self.shapes[x][1]]
        scale, shift = self.weight(name + ".weight", *channels), self.weight(name + ".bias", *channels)
        statistics = [self._statistics(f"{name}.running_{of}", channels, start) for of, start in (("mean", 0), ("var", 1))]
        made = self.node("BatchNormInternal", [x, scale, shift] + statistics, [self.shapes[x]] + [channels] * 4,
                         domain=MICROSOFT, epsilon=1e-5, momentum=0.9, training_mode=1)
        return self._layer(made[0], self._norm_gradient("BatchNormalizationGrad", x, scale, shift, made[3:], epsilon=1e-5))

    def layer_norm(self, x, name):
        width = self.shapes[x][-1]
        scale, shift = self.weight(name + ".weight", width), self.weight(name + ".bias", width)
        attributes = dict(axis=-1, epsilon=1e-5, stash_type=1)
        saved = self.shapes[x][:-1] + [1]
        made = self.node("LayerNormalization", [x, scale, shift], [self.shapes[x], saved, saved], **attributes)
        return self._layer(made[0], self._norm_gradient("LayerNormalizationGrad", x, scale, shift, made[1:], **attributes))

    def dropout(self, x, ratio):
        shape = self.shapes[x]
        ratio, training = self.constant(np.float32(ratio)), self.constant(np.bool_(True))
        y, mask = self.node("Dropout", [x, ratio, training], [shape, shape], elements=[FLOAT, BOOL])

        def gradient(dy):
            return {x: self.node("DropoutGrad", [dy, mask, ratio, training], [shape], domain=MICROSOFT)}

        return self._layer(y, gradient)

    def max_pool(self, x):
        """Halves height and width."""
        attributes = dict(kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1], ceil_mode=0, storage_order=0)
        shape = self.shapes[x][:2] + [edge // 2 for edge in self.shapes[x][2:]]
        y, mask = self.node("MaxPool", [x], [shape, shape], elements=[FLOAT, INT64], **attributes)
        return self._layer(y, lambda dy: {x: self.node("MaxPoolGrad", [dy, mask], [self.shapes[x]], **attributes)})

    def mean_of_images(self, x):
        """One number for each image and channel."""
        shape = self.shapes[x]
        pooled = self.node("GlobalAveragePool", [x], [shape[:2] + [1, 1]])
        y = self.node("Flatten", [pooled], [shape[:2]], axis=1)

        def gradient(dy):
            back = self.node("Reshape", [dy, self.constant(np.array(shape[:2] + [1, 1]))], [shape[:2] + [1, 1]], allowzero=0)
            share = self.node("Mul", [back, self.constant(np.float32(1 / math.prod(shape[2:])))], [shape[:2] + [1, 1]])
            return {x: self.node("Expand", [share, self.constant(np.array(shape))], [shape])}

        return self._layer(y, gradient)

    def reshape(self, x, *shape):
        y = self.node("Reshape", [x, self.constant(np.array(shape))], [list(shape)], allowzero=0)
        before = self.shapes[x]

        def gradient(dy):
            return {x: self.node("Reshape", [dy, self.constant(np.array(before))], [before], allowzero=0)}

        return self._layer(y, gradient)

    def transpose(self, x, *axes):
        y = self.node("Transpose", [x], [[self.shapes[x][axis] for axis in axes]], perm=axes)
        back = [axes.index(axis) for axis in range(len(axes))]
        return self._layer(y, lambda dy: {x: self.node("Transpose", [dy], [self.shapes[x]], perm=back)})

    def split(self, x, parts):
        """Equal parts of the last axis."""
        axis, width = len(self.shapes[x]) - 1, self.shapes[x][-1] // parts
        sizes = self.constant(np.full(parts, width))
        made = self.node("Split", [x, sizes], [self.shapes[x][:-1] + [width]] * parts, axis=axis)

        def gradient(*dys):
            return {x: self.node("Concat", list(dys), [self.shapes[x]], axis=axis)}

        return self._layer(made, gradient)

    def cross_entropy(self, scores, labels):
        """The loss; gradients start here."""
        shape = self.shapes[scores]
        loss, log = self.node("SoftmaxCrossEntropyLoss", [scores, labels], [[], shape], reduction="mean")
        self.outputs.append(helper.make_tensor_value_info(loss, FLOAT, []))
        one = self.constant(np.float32(1))
        self._layer(loss, lambda dy: {scores: self.node(
            "SoftmaxCrossEntropyLossGrad", [dy, log, labels], [shape], domain=MICROSOFT, reduction="mean")})
        self.backward({loss: one})

    # Graphs

    def backward(self, start):
        """Adds all gradients, from those in `start` on, and accumulates those of the weights; without
        weights, makes the gradients of the inputs outputs."""
        if self.weights:
            self._unwanted = {info.name for info in self.inputs} - set(self.weights)
        arriving = {tensor: [gradient] for tensor, gradient in start.items()}
        total = {}

        def of(tensor):
            if tensor not in total and tensor in arriving:
                parts = arriving.pop(tensor)
                total[tensor] = parts[0] if len(parts) == 1 else self.node("Sum", parts, [self.shapes[tensor]])
            return total.get(tensor)

        for made, gradient in reversed(self._tape):
            dys = [of(tensor) for tensor in made]
            if all(dy is None for dy in dys):
                continue
            if None in dys:
                raise ValueError(f"the loss depends on some of {made}, not on all")
            for tensor, part in gradient(*dys).items():
                if self._needs(tensor):
                    arriving.setdefault(tensor, []).append(part)
        if self.weights:
            reset = self.input("lazy_reset_grad", [1], BOOL)
        for tensor in self.weights:
            buffer = self.input(tensor + "_grad.accumulation.buffer", self.shapes[tensor])
            done = tensor + "_grad.accumulation.out"
            self._append("InPlaceAccumulatorV2", [buffer, of(tensor), reset], [done], MICROSOFT, {})
            self.outputs.append(helper.make_tensor_value_info(done, BOOL, [1]))
        for tensor in list(arriving):
            self.output(of(tensor))
        self._drop_unread()

    def is_read(self, tensor):
        return tensor in self._read

    def output(self, tensor):
        self.outputs.append(helper.make_tensor_value_info(tensor, FLOAT, self.shapes[tensor]))

    def model(self):
        outputs = {info.name for info in self.outputs}
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, list(self.initializers.values()),
            value_info=[helper.make_tensor_value_info(name, element, self.shapes[name])
                        for name, element in self._values if name not in outputs],
        )
        opsets = [helper.make_opsetid("", 15), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ckpt-opt")

    def node(self, operator, inputs, shapes, domain="", elements=None, **attributes):
        """Adds a node; its only output, or all. A shape of None leaves an output out."""
        wish = f"/{operator}_{len(self.nodes)}"
        names = []
        for position, shape in enumerate(shapes):
            if shape is None:
                names.append("")
                continue
            name = f"{wish}_output_{position}"
            self.shapes[name] = list(shape)
            self._values.append((name, elements[position] if elements else FLOAT))
            names.append(name)
        self._append(operator, inputs, names, domain, attributes)
        made = [name for name in names if name]
        return made[0] if len(made) == 1 else made

    def _append(self, operator, inputs, outputs, domain, attributes):
        name = f"/{operator}_{len(self.nodes)}"
        self._read.update(inputs)
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, domain=domain, **attributes))

    def _layer(self, made, gradient):
        self._tape.append((made if isinstance(made, list) else [made], gradient))
        return made

    def _norm_gradient(self, operator, x, scale, shift, saved, **attributes):
        def gradient(dy):
            wanted = [x, scale, shift]
            made = self.node(operator, [dy, x, scale] + saved, [self.shapes[of] for of in wanted],
                             domain=MICROSOFT, **attributes)
            return dict(zip(wanted, made))

        return gradient

    def _statistics(self, name, shape, start):
        self.shapes[name] = list(shape)
        self.initializers[name] = numpy_helper.from_array(np.full(shape, start, np.float32), name)
        return name

    def _needs(self, tensor):
        return tensor not in self._unwanted

    def _drop_unread(self):
        """Removes gradients that nobody asked for, with what only they read."""
        read = {info.name for info in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if not read.isdisjoint(node.output):
                read.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        made = {name for node in kept for name in node.output}
        self._values = [value for value in self._values if value[0] in made]

    def _free(self, wish):
        count = self._counts[wish] = self._counts.get(wish, -1) + 1
        return f"{wish}_{count}"


def gemm(transpose_a, transpose_b, beta):
    return dict(alpha=1.0, beta=beta, transA=transpose_a, transB=transpose_b)


def fused(transpose_a, transpose_b):
    return dict(alpha=1.0, transA=transpose_a, transB=transpose_b, transBatchA=0, transBatchB=0)


def save(graph, path):
    model = graph.model()
    with open(path, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
    return len(model.graph.node)
