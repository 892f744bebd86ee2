"""The generated graphs train: ONNX Runtime runs them, and their gradients are those of the loss."""

import unittest

import numpy as np
import onnxruntime

from generate import FAMILIES, generate
from model_inputs import BUFFER_SUFFIX, Inputs

NODES = 150


def session(model):
    # Sessions draw the same dropout masks if they start from the same seed.
    onnxruntime.set_seed(7)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fed(model):
    return Inputs(model, {}).make()


class Generate(unittest.TestCase):
    def test_sizes_are_near_the_wish(self):
        for family in FAMILIES:
            for wish in (300, 2000):
                nodes = len(generate(family, wish).nodes)
                # A block of a transformer has about 90 nodes, and layers of any kind have more or less.
                part = 6 if family == "mixed" else 20
                self.assertLess(abs(nodes - wish), 50 + wish / part, (family, nodes))

    def test_the_same_arguments_give_the_same_bytes(self):
        for family in FAMILIES:
            first, second = (generate(family, NODES).model().SerializeToString(deterministic=True) for _ in range(2))
            self.assertEqual(first, second)
        self.assertNotEqual(generate("layered", NODES, 1).nodes, generate("layered", NODES, 2).nodes)

    def test_every_tensor_is_read_or_put_out(self):
        # What else kernels put out besides their result.
        extra = {"BatchNormInternal", "LayerNormalization", "LayerNormalizationGrad", "ConvGrad"}
        for family in FAMILIES:
            graph = generate(family, NODES).model().graph
            used = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
            for node in graph.node:
                if node.op_type not in extra:
                    self.assertTrue(used.issuperset(node.output), node)

    def test_gradients_are_those_of_the_loss(self):
        for family in FAMILIES:
            model = generate(family, NODES).model()
            feeds = fed(model)
            weights = [name[:-len(BUFFER_SUFFIX)] for name in feeds if name.endswith(BUFFER_SUFFIX)]
            if not weights:
                continue  # the chain has no loss
            # One step fills the accumulation buffers, in place.
            session(model).run(None, feeds)
            gradients = {name: feeds[name + BUFFER_SUFFIX].copy() for name in weights}
            length = sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values()) ** 0.5
            self.assertTrue(np.isfinite(length) and length > 0, family)
            step = 0.02 / length
            losses = []
            for sign in (1, -1):
                moved = fed(model)
                for name in weights:
                    moved[name] = moved[name] + np.float32(sign * step / length) * gradients[name]
                losses.append(float(session(model).run([model.graph.output[0].name], moved)[0]))
            # Along the gradient the loss grows by its length, to second order: over 2 * step.
            self.assertAlmostEqual((losses[0] - losses[1]) / (2 * step * length), 1, delta=0.05, msg=family)


if __name__ == "__main__":
    unittest.main()
