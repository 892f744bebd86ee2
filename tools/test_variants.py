"""What variants cannot do: a case of other bits, and offloading."""

import unittest

import numpy
import onnxruntime
from onnx import helper

import variants

FLOAT = variants.FLOAT


def run(node, shapes, outputs, feeds):
    values = lambda pairs: [(name, FLOAT, shape) for name, shape in pairs]
    graph = variants.model([node], values(shapes), values(outputs))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def both_forms(x, scale, bias, activation):
    """What the activation makes of the normalization, and the same as copies make it."""
    shape, channels = list(x.shape), x.shape[1]
    vectors = [(name, [channels]) for name in ("scale", "bias", "mean", "var")]
    names = ["y", "new_mean", "new_var", "saved_mean", "saved_inverse"]
    domain = "com.microsoft"
    node = helper.make_node(
        "BatchNormInternal", ["x", "scale", "bias", "mean", "var"], names, domain=domain, training_mode=1
    )
    feeds = {"x": x, "scale": scale, "bias": bias, "mean": scale * 0, "var": scale * 0 + 1}
    outputs = [("y", shape)] + [(name, [channels]) for name in names[3:]]
    y, mean, inverse = run(node, [("x", shape)] + vectors, outputs, feeds)
    node = helper.make_node(activation, ["y"], ["a"])
    a = run(node, [("y", shape)], [("a", shape)], {"y": y})[0]
    factor = inverse * scale
    weights = [channels, 1] + [1] * (x.ndim - 2)
    node = helper.make_node(
        "FusedConv", ["x", "w", "shift"], ["a"], domain=domain, group=channels, activation=activation
    )
    feeds = {"x": x, "w": factor.reshape(weights), "shift": bias - mean * factor}
    shapes = [("x", shape), ("w", weights), ("shift", [channels])]
    return a, run(node, shapes, [("a", shape)], feeds)[0]


class NegativeZero(unittest.TestCase):
    def test_only_the_sign_of_zeros_differs_and_only_where_the_bias_is_negative_zero(self):
        r = numpy.random.RandomState(0)
        signs = 0
        for _ in range(200):
            channels = r.randint(1, 9)
            x = r.standard_normal([r.randint(1, 4), channels, 20, 20]).astype("f")
            # Dead channels, values that underflow, and what is no number.
            x *= numpy.float32(r.choice([1.0, 1e-30, 0.0, -0.0]))
            if r.random() < 0.2:
                x[0, 0, 0] = r.choice([numpy.nan, numpy.inf, -numpy.inf])
            scale, bias = r.choice([1.0, -2.0, 0.0, -0.0], [2, channels]).astype("f")
            expected, found = both_forms(x, scale, bias, "Relu")
            numpy.testing.assert_array_equal(expected, found)
            other = expected.view("i4") != found.view("i4")
            signs += other.sum()
            channel = numpy.nonzero(other)[1]
            self.assertTrue(numpy.all((bias[channel] == 0) & numpy.signbit(bias[channel])))
        self.assertGreater(signs, 0)


def gradients(axes, group, mended=False):
    """dX and dW of all ones by ConvGrad, or dX by ConvTranspose, both read by another node, so that they lie in one block."""
    x, w = [2, 8] + [8] * axes, [8, 8 // group] + [3] * axes
    shapes = [("dy", [2, 8] + [6] * axes), ("x", x), ("w", w)]
    windows = {"group": group, "dilations": [1] * axes, "kernel_shape": [3] * axes, "pads": [0] * 2 * axes, "strides": [1] * axes}
    gradient = lambda outputs: helper.make_node("ConvGrad", ["dy", "x", "w"], outputs, domain="com.microsoft", **windows)
    if mended:
        nodes = [helper.make_node("ConvTranspose", ["dy", "w"], ["dx"], **windows), gradient(["", "dw"])]
    else:
        nodes = [gradient(["dx", "dw"])]
    nodes += [
        helper.make_node("Abs", ["dx"], ["adx"]),
        helper.make_node("Abs", ["dw"], ["adw"]),
    ]
    values = lambda pairs: [(name, FLOAT, shape) for name, shape in pairs]
    graph = variants.model(
        nodes, values(shapes), values([("adx", x), ("adw", w)]), values([("dx", x), ("dw", w)])
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: numpy.ones(shape, "f") for name, shape in shapes}
    # The first run lays out the block that later ones use.
    return [session.run(None, feeds) for _ in range(3)][-1]


class Overrun(unittest.TestCase):
    """Why there are no approximations of gradients of such convolutions, and a warning of them, and what plans have instead."""

    def test_with_groups_and_not_two_axes_the_weights_gradient_is_overwritten(self):
        for axes in (1, 2, 3):
            for group in (1, 2, 4):
                # One product for each of 6 windows an axis, in each of 2 images.
                right = numpy.all(gradients(axes, group)[1] == 2 * 6**axes)
                self.assertEqual(right, group == 1 or axes == 2, (axes, group))
                mended = gradients(axes, group, mended=True)
                self.assertTrue(numpy.all(mended[1] == 2 * 6**axes), (axes, group))
                numpy.testing.assert_array_equal(mended[0], gradients(axes, group)[0])


class Dropout(unittest.TestCase):
    def test_its_mask_and_rate_give_the_same_bits_in_standard_operators(self):
        r = numpy.random.RandomState(0)
        for _ in range(100):
            shape = [int(size) for size in r.randint(1, 40, size=r.randint(1, 4))]
            x = r.standard_normal(shape).astype("f") * numpy.float32(r.choice([1.0, 1e-38, 1e38]))
            flat = x.reshape(-1)
            for value in (numpy.nan, numpy.inf, -numpy.inf, -0.0, 1e-45):
                flat[r.randint(len(flat))] = value
            ratio = numpy.float32(r.choice([0.0, 0.1, 0.3, 0.5, 0.9, r.random_sample()]))
            inputs = [("x", FLOAT, shape), ("ratio", FLOAT, []), ("training", helper.TensorProto.BOOL, [])]
            outputs = [("y", FLOAT, shape), ("mask", helper.TensorProto.BOOL, shape), ("again", FLOAT, shape)]
            nodes = [
                helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"]),
                helper.make_node("Cast", ["mask"], ["kept"], to=FLOAT),
                helper.make_node("Constant", [], ["rate"], value_float=float(numpy.float32(1) - ratio)),
                helper.make_node("Div", ["rate", "kept"], ["divisor"]),
                helper.make_node("Div", ["x", "divisor"], ["again"]),
            ]
            session = onnxruntime.InferenceSession(
                variants.model(nodes, inputs, outputs).SerializeToString(), providers=["CPUExecutionProvider"]
            )
            y, _, again = session.run(None, {"x": x, "ratio": numpy.array(ratio), "training": numpy.array(True)})
            self.assertEqual(y.view("i4").tolist(), again.view("i4").tolist())


class Offload(unittest.TestCase):
    def test_the_cpu_provider_has_no_kernel_that_moves_a_tensor_to_the_host(self):
        for operator in ("MemcpyToHost", "MemcpyFromHost"):
            node = helper.make_node(operator, ["x"], ["y"])
            with self.assertRaisesRegex(Exception, "Could not find an implementation for " + operator):
                run(node, [("x", [4])], [("y", [4])], {})


class Attributes(unittest.TestCase):
    """Where a runtime that honours them could read an algorithm of each node."""

    def test_convolutions_load_with_attributes_of_two_underscores(self):
        node = helper.make_node("Conv", ["x", "w"], ["y"], __ckpt_conv_algo="winograd")
        ones = {"x": numpy.ones([1, 1, 3, 3], "f"), "w": numpy.ones([1, 1, 3, 3], "f")}
        shapes = [(name, [1, 1, 3, 3]) for name in ("x", "w")]
        self.assertEqual(run(node, shapes, [("y", [1, 1, 1, 1])], ones)[0].item(), 9)
        node = helper.make_node("Conv", ["x", "w"], ["y"], ckpt_conv_algo="winograd")
        with self.assertRaisesRegex(Exception, "Unrecognized attribute"):
            run(node, shapes, [("y", [1, 1, 1, 1])], ones)


if __name__ == "__main__":
    unittest.main()
