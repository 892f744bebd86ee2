"""The one case in which a batch normalization again from its statistics has other bits."""

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


def both_forms(x, scale, bias):
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
    weights = [channels, 1] + [1] * (x.ndim - 2)
    node = helper.make_node("FusedConv", ["x", "w", "shift"], ["y"], domain=domain, group=channels)
    factor = inverse * scale
    feeds = {"x": x, "w": factor.reshape(weights), "shift": bias - mean * factor}
    shapes = [("x", shape), ("w", weights), ("shift", [channels])]
    return y, run(node, shapes, [("y", shape)], feeds)[0]


class NegativeZero(unittest.TestCase):
    def test_only_the_sign_of_zeros_differs_and_only_where_the_bias_is_negative_zero(self):
        r = numpy.random.RandomState(0)
        signs = 0
        for _ in range(200):
            channels = r.randint(1, 9)
            x = r.standard_normal([r.randint(1, 4), channels, 20, 20]).astype("f")
            # Dead channels, and values that underflow.
            x *= numpy.float32(r.choice([1.0, 1e-30, 0.0, -0.0]))
            scale, bias = r.choice([1.0, -2.0, 0.0, -0.0], [2, channels]).astype("f")
            expected, found = both_forms(x, scale, bias)
            numpy.testing.assert_array_equal(expected, found)
            other = numpy.signbit(expected) != numpy.signbit(found)
            signs += other.sum()
            channel = numpy.nonzero(other)[1]
            self.assertTrue(numpy.all((bias[channel] == 0) & numpy.signbit(bias[channel])))
        self.assertGreater(signs, 0)


if __name__ == "__main__":
    unittest.main()
