"""The hook for ORTModule, with a stand-in for what ORTModule has inside: the tests do without PyTorch. With it,
tools/train_ortmodule.py trains."""

import os
import types
import unittest

import numpy as np
import onnx
import onnxruntime

import ckpt_opt
import ckpt_opt.ort
import ckpt_opt.ortmodule

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
GRAPH = os.path.join(ROOT, "testdata", "models", "ortmodule_gpt_small.onnx")
BATCH = {"x": np.zeros((8, 128), np.int64), "y": np.zeros(1024, np.int64)}


class Manager:
    """Makes its session in the first step, and takes any error for a reason to go on without one, as ORTModule does."""

    _device = "cpu"

    def __init__(self):
        self._onnx_models = types.SimpleNamespace(optimized_model=onnx.load(GRAPH))
        described = types.SimpleNamespace(construct_inputs=lambda inputs, keywords, *_: {**dict(zip(BATCH, inputs)), **keywords})
        self._graph_transition_manager = types.SimpleNamespace(_post_export_processed_model_info=described)
        self.sessions, self.options = [], []

    def forward(self, *inputs, **keywords):
        try:
            if not self.sessions:
                self._create_execution_agent()
            return "of the session"
        except Exception:
            return "without a session"

    def _create_execution_agent(self):
        self.options.append(self._get_session_config()[0])
        self.sessions.append(self._onnx_models.optimized_model)

    def _get_session_config(self):
        return onnxruntime.SessionOptions(), ["CPUExecutionProvider"], [{}]


def module(manager):
    return types.SimpleNamespace(_torch_module=types.SimpleNamespace(_execution_manager=lambda training: manager))


class Hook(unittest.TestCase):
    def setUp(self):
        self.manager = Manager()
        self.original = self.manager._onnx_models.optimized_model

    def test_the_first_step_plans_for_the_sizes_of_its_batch(self):
        rewriting = ckpt_opt.ortmodule.rewrite(module(self.manager), "fixed+60%")
        self.assertIsNone(rewriting.result)
        for _ in range(2):
            self.assertEqual(self.manager.forward(BATCH["x"], y=BATCH["y"]), "of the session")
        [session] = self.manager.sessions
        said = {entry.key: entry.value for entry in session.metadata_props}
        self.assertEqual(set(said["ckpt-opt.dimensions"].split()), {"x_dim0=8", "y_dim0=1024"})
        self.assertGreater(rewriting.result.recomputed_nodes, 0)
        # As ORTModule has it, which reuses no buffers.
        self.assertFalse(self.manager.options[0].enable_mem_pattern)
        self.assertIs(self.manager._onnx_models.optimized_model, self.original)

    def test_a_step_that_fits_nothing_raises_and_does_not_go_on_without_a_session(self):
        rewriting = ckpt_opt.ortmodule.rewrite(module(self.manager), "1MB")
        with self.assertRaises(ckpt_opt.InfeasibleError) as caught:
            self.manager.forward(BATCH["x"], y=BATCH["y"])
        self.assertEqual(caught.exception.code, "no-plan-fits")
        self.assertIsNone(rewriting.result)
        self.assertEqual(self.manager.sessions, [])
        self.assertIs(self.manager._onnx_models.optimized_model, self.original)

    def test_what_is_no_ortmodule_is_named(self):
        with self.assertRaisesRegex(TypeError, "ORTModule, not int"):
            ckpt_opt.ortmodule.rewrite(3, "1MB")


if __name__ == "__main__":
    unittest.main()
