"""The Python package as people use it. `tests/python.rs` runs this with the package built; alone:

    PYTHONPATH=<folder with the built package>:tools python -m unittest discover -s tools/python/tests
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import numpy as np
import onnx
import onnxruntime

import ckpt_opt
import ckpt_opt.ort

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MODEL = os.path.join(ROOT, "testdata", "cases", "unsorted.onnx")
DIMS = {"batch": 64}
LEAN = {"dims": DIMS, "runtime_settings": "lean"}


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out.onnx")

    def test_a_model_is_rewritten_within_its_budget(self):
        before = ckpt_opt.inspect(MODEL, **LEAN)
        result = ckpt_opt.optimize(MODEL, self.out, budget="fixed+70%", **LEAN)
        self.assertEqual(result.output, self.out)
        self.assertEqual(result.peak_before_bytes, before.peak_bytes)
        self.assertLessEqual(result.peak_after_bytes, result.budget_bytes)
        self.assertGreater(result.recomputed_nodes, 0)
        self.assertIn("wrote", str(result))
        self.assertIn("<svg", result._repr_svg_())
        self.assertEqual(result.png()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertIn("<!DOCTYPE html>", result.html())
        self.assertGreater(len(json.loads(result.trace())["traceEvents"]), result.nodes_after)
        proved = ckpt_opt.verify(MODEL, self.out, **LEAN)
        self.assertEqual(proved.before, before.orders)
        self.assertLessEqual(proved.after["DEFAULT"].peak_bytes, result.budget_bytes)

    def test_an_inspection_says_who_holds_the_peak_and_what_the_optimizer_adds(self):
        alone = ckpt_opt.inspect(MODEL, **LEAN)
        peak = alone.orders["DEFAULT"]
        self.assertGreater(peak.kinds["activations"], 0)
        held = sum(size for kind, size in peak.kinds.items() if kind != "workspace of the node")
        self.assertEqual(sum(layer.bytes for layer in peak.layers), held)
        self.assertLessEqual(alone.floor_bytes, alone.peak_bytes)
        self.assertIn("DEFAULT order, ORT_ENABLE_ALL: peak", str(alone))
        inputs = {value.name: value.type.tensor_type.shape.dim for value in onnx.load(MODEL).graph.input}
        trained = sum(int(np.prod([dim.dim_value for dim in dims])) for name, dims in inputs.items()
                      if f"{name}_grad.accumulation.buffer" in inputs)
        with_states = ckpt_opt.inspect(MODEL, optimizer="adamw", **LEAN)
        self.assertEqual(with_states.peak_bytes - alone.peak_bytes, 2 * 4 * trained)
        self.assertEqual(with_states.fixed_bytes - alone.fixed_bytes, 2 * 4 * trained)
        self.assertEqual(ckpt_opt.inspect(MODEL, optimizer="sgd", **LEAN), alone)

    def test_paths_bytes_and_protos_give_the_same_file(self):
        with open(MODEL, "rb") as file:
            contents = file.read()
        made = [ckpt_opt.optimize(model, budget="fixed+80%", **LEAN).to_bytes()
                for model in (MODEL, contents, onnx.load(MODEL))]
        written = ckpt_opt.optimize(MODEL, self.out, budget="fixed+80%", **LEAN)
        with open(self.out, "rb") as file:
            self.assertEqual(file.read(), made[0])
        self.assertEqual(made[0], made[1])
        # onnx may write its fields in another way; what it means is the same.
        self.assertEqual(onnx.load_model_from_string(made[0]), onnx.load_model_from_string(made[2]))
        self.assertEqual(len(written.to_model().graph.node), written.nodes_after)

    def test_a_written_file_says_of_what_it_was_made_and_how(self):
        ckpt_opt.optimize(MODEL, self.out, budget="fixed+80%", seed=3, **LEAN)
        said = {entry.key: entry.value for entry in onnx.load(self.out).metadata_props}
        with open(MODEL, "rb") as file:
            self.assertEqual(said["ckpt-opt.source_sha256"], hashlib.sha256(file.read()).hexdigest())
        options = json.loads(said["ckpt-opt.options"])
        self.assertEqual((options["budget"], options["seed"], options["runtime_settings"]), ("fixed+80%", 3, "lean"))
        self.assertIn("ckpt-opt.version", said)

    def test_a_lowered_model_is_planned_for_builds_without_training(self):
        lowered = ckpt_opt.lower(MODEL, os.path.join(self.folder, "lowered.onnx"))
        domains = {node.domain for node in onnx.load(lowered).graph.node}
        operators = {node.op_type for node in onnx.load(lowered).graph.node}
        self.assertFalse(any(name.endswith("Grad") for name in operators), (domains, operators))
        ckpt_opt.optimize(lowered, self.out, budget="fixed+90%", **LEAN)
        self.assertEqual(ckpt_opt.ort.metadata(self.out)["runtime"], "stock")
        options = ckpt_opt.ort.session_options(self.out)
        self.assertIn("TransposeOptimizer", options.get_session_config_entry("optimization.disable_specified_optimizers"))
        with self.assertRaises(ckpt_opt.CkptOptError) as caught:
            ckpt_opt.optimize(MODEL, budget="fixed+90%", runtime="stock", **LEAN)
        self.assertIn("Grad", str(caught.exception))
        with self.assertRaises(ckpt_opt.CkptOptError) as caught:
            ckpt_opt.lower(MODEL, self.out, dims={"bach": 64})
        self.assertEqual(caught.exception.code, "dimension")

    def test_a_whole_step_trains_saves_and_goes_on(self):
        whole = ckpt_opt.lower(MODEL, os.path.join(self.folder, "whole.onnx"), optimizer="adamw")
        ckpt_opt.optimize(whole, self.out, budget="fixed+90%", **LEAN)
        inputs = {value.name: [dim.dim_value or DIMS["batch"] for dim in value.type.tensor_type.shape.dim]
                  for value in onnx.load(whole).graph.input}
        generator = np.random.default_rng(0)
        over = json.loads(ckpt_opt.ort.metadata(whole)["overwrites"])
        weights = {name: generator.normal(0, 0.1, inputs[name]).astype(np.float32) for name in over.values()
                   if not name.endswith((".moment_1", ".moment_2"))}
        before = {name: value.copy() for name, value in weights.items()}
        told = {"learning_rate", "step"} | set(over.values())
        types = {value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                 for value in onnx.load(whole).graph.input}
        batch = {name: (generator.integers(0, 2, shape) if types[name].kind == "i" else generator.normal(0, 1, shape))
                 .astype(types[name]) for name, shape in inputs.items() if name not in told}
        losses = []
        step = ckpt_opt.ort.Step(self.out, weights)
        for _ in range(4):
            losses.append(float(next(iter(step(learning_rate=0.01, **batch).values()))))
        self.assertLess(losses[-1], losses[0])
        # What was given stays what it was.
        for name, value in before.items():
            np.testing.assert_array_equal(value, weights[name])
        # The unplanned graph, stopped and taken up again, comes to the same.
        other, again = ckpt_opt.ort.Step(whole, weights), []
        for number in range(4):
            again.append(float(next(iter(other(learning_rate=0.01, **batch).values()))))
            if number == 1:
                other = ckpt_opt.ort.Step(whole, other.state())
        self.assertEqual(losses, again)
        one, two = step.state(), other.state()
        self.assertEqual((int(one["step"]), sorted(one)), (4, sorted(two)))
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name])
        with self.assertRaisesRegex(ValueError, "state has no .*weight"):
            ckpt_opt.ort.Step(whole, {})

    def test_what_fits_nothing_says_what_would_and_who_holds_it(self):
        with self.assertRaises(ckpt_opt.InfeasibleError) as caught:
            ckpt_opt.optimize(MODEL, self.out, budget=1000, **LEAN)
        error = caught.exception
        self.assertIsInstance(error, ckpt_opt.CkptOptError)
        self.assertEqual(error.budget_bytes, 1000)
        self.assertGreater(error.smallest_peak_bytes, 1000)
        self.assertIsInstance(error.holders[0], ckpt_opt.Holder)
        self.assertIn("no plan fits the budget", str(error))
        self.assertEqual(error.code, "no-plan-fits")
        self.assertIn(f"--budget {error.smallest_peak_bytes} is enough", error.help)
        self.assertFalse(os.path.exists(self.out))

    def test_wrong_arguments_are_named(self):
        def text(**arguments):
            with self.assertRaises(ckpt_opt.UsageError) as caught:
                ckpt_opt.optimize(MODEL, **{"budget": "min", "dims": DIMS, **arguments})
            return str(caught.exception)

        self.assertIn("8GiB", text(budget="8 bananas"))
        self.assertIn("'bugdet'", text(bugdet="8GiB"))
        self.assertIn("lean", text(runtime_settings="slim"))
        self.assertIn("masks", text(variants="mask"))
        self.assertIn("tpu", text(device="tpu"))
        self.assertIn("seconds", text(time_limit=-1))
        with self.assertRaises(ckpt_opt.CkptOptError) as caught:
            ckpt_opt.inspect(os.path.join(self.folder, "none.onnx"))
        self.assertIn("none.onnx", str(caught.exception))
        with self.assertRaises(ckpt_opt.CkptOptError) as caught:
            ckpt_opt.inspect(MODEL)
        self.assertIn("batch", str(caught.exception))
        self.assertEqual((caught.exception.code, caught.exception.help), ("unbound-dimension", "add --dim batch=N"))

    def test_progress_is_told_and_may_end_the_work(self):
        events = []
        ckpt_opt.optimize(MODEL, budget="fixed+70%", progress=lambda event, **facts: events.append((event, facts)), **LEAN)
        self.assertEqual(events[0][0], "planning")
        self.assertEqual(events[0][1]["nodes"], 127)

        def enough(event, **facts):
            raise ValueError("enough")

        with self.assertRaisesRegex(ValueError, "enough"):
            ckpt_opt.optimize(MODEL, self.out, budget="fixed+70%", progress=enough, **LEAN)
        self.assertFalse(os.path.exists(self.out))

    def test_ctrl_c_ends_the_work_and_nothing_is_written(self):
        def pressed(event, **facts):
            signal.raise_signal(signal.SIGINT)

        # As in a terminal, whatever started the tests.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt):
            ckpt_opt.optimize(MODEL, self.out, budget="min", progress=pressed, **LEAN)
        self.assertEqual(os.listdir(self.folder), [])

    def test_other_threads_run_meanwhile(self):
        counted, done = [0], threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        begun = time.monotonic()
        ckpt_opt.optimize(MODEL, budget="min", dims=DIMS)
        took = time.monotonic() - begun
        done.set()
        thread.join()
        # One that waited for the lock would count a few at most.
        self.assertGreater(counted[0] - before, 5)
        self.assertGreater(took, 0.02)

    def test_a_sweep_has_a_point_for_each_budget(self):
        found = ckpt_opt.sweep(MODEL, ["fixed+90%", "fixed+80%", 1000], **LEAN)
        self.assertEqual([point.fits for point in found.points], [True, True, False])
        self.assertIsNone(found.points[2].overhead)
        self.assertEqual([point.level in ("any", "all") for point in found.points], [True, True, False])
        self.assertNotIn("time_limit", [point.stop_reason for point in found.points])
        self.assertEqual(found.points[2].budget_bytes, 1000)
        self.assertIn("fixed+90%", str(found))

    def test_the_largest_batch_fits(self):
        budget = ckpt_opt.inspect(MODEL, dims={"batch": 24}, runtime_settings="lean").peak_bytes
        found = ckpt_opt.largest(MODEL, "batch", budget, at_most=0.02, runtime_settings="lean")
        self.assertGreaterEqual(found.size, 24)
        self.assertLessEqual(found.result.overhead, 0.02)
        self.assertLessEqual(found.result.peak_after_bytes, budget)
        self.assertIn(found.size, [attempt.size for attempt in found.tried if attempt.fits])

    def test_doubts_are_warnings(self):
        stale = os.path.join(ROOT, "testdata", "cases", "stale_value_info.onnx")
        with self.assertWarnsRegex(ckpt_opt.CkptOptWarning, "is declared as"):
            result = ckpt_opt.optimize(stale, budget="200%", **LEAN)
        self.assertEqual(len(result.warnings), 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ckpt_opt.optimize(MODEL, budget="200%", **LEAN)

    def test_tables_may_be_dictionaries(self):
        node = next(node.name for node in onnx.load(MODEL).graph.node if node.name)
        costs = {"nodes": {node: {"time_us": 1e6}}}
        slow = ckpt_opt.optimize(MODEL, budget="fixed+90%", costs=costs, **LEAN)
        self.assertLess(slow.overhead, 0.001)
        device = {"provider": "cuda", "operations_per_second": 1e13, "bytes_per_second": 1e12, "launch_us": 4, "name": "mine"}
        self.assertEqual(ckpt_opt.optimize(MODEL, budget="fixed+90%", device=device, **LEAN).device, "mine")

    def test_the_command_comes_with_the_package(self):
        def command(*arguments):
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            return subprocess.run([sys.executable, "-m", "ckpt_opt", *arguments], env=environment, capture_output=True, text=True)

        written = command(MODEL, self.out, "--budget", "fixed+70%", "--dim", "batch=64", "--runtime-settings", "lean", "--json")
        self.assertEqual(written.returncode, 0, written.stderr)
        self.assertLessEqual(json.loads(written.stdout)["peak_after_bytes"], json.loads(written.stdout)["budget_bytes"])
        self.assertTrue(os.path.exists(self.out))
        self.assertEqual(command(MODEL, self.out, "--budget", "1KiB", "--dim", "batch=64").returncode, 3)
        self.assertEqual(command("--nonsense").returncode, 2)


class Runtime(unittest.TestCase):
    def test_a_session_is_made_as_the_file_asks_for(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.onnx")
            ckpt_opt.optimize(MODEL, out, budget="fixed+70%", **LEAN)
            options = ckpt_opt.ort.session_options(out)
            self.assertFalse(options.enable_mem_reuse or options.enable_mem_pattern or options.enable_cpu_mem_arena)
            self.assertEqual(ckpt_opt.ort.metadata(out)["dimensions"], "batch=64")
            self.assertEqual(ckpt_opt.ort.provider_options(out), {})
            onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
        self.assertTrue(ckpt_opt.ort.session_options(MODEL).enable_mem_pattern)

    def test_a_session_runs_in_the_order_and_at_the_level_for_which_the_budget_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.onnx")
            ckpt_opt.optimize(MODEL, out, budget="fixed+70%", order="priority", level="extended", **LEAN)
            options = ckpt_opt.ort.session_options(out)
            self.assertEqual(options.execution_order, onnxruntime.ExecutionOrder.PRIORITY_BASED)
            level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            self.assertEqual(options.graph_optimization_level, level)
            onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
        with self.assertRaises(ckpt_opt.UsageError):
            ckpt_opt.optimize(MODEL, level="none", **LEAN)

    def test_a_module_on_the_rewritten_graph_trains_as_on_the_original(self):
        from model_inputs import BUFFER_SUFFIX, Inputs
        from onnx import numpy_helper
        from onnxruntime.capi._pybind_state import save_checkpoint
        from train import adamw, batches, training_api

        api = training_api()
        model, dims = os.path.join(ROOT, "testdata", "models", "triplet.onnx"), {"batch": 4}
        inputs = Inputs(onnx.load(model), dims)
        made = inputs.make()
        parameters = [name[:-len("_grad.accumulation.buffer")] for name in made if name.endswith(BUFFER_SUFFIX)]
        user = [name for name in made if name not in {*parameters, *inputs.buffers, "lazy_reset_grad"}]
        losses = []
        for rewrites in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "training_model.onnx")
                with open(model, "rb") as source, open(path, "wb") as copy:
                    copy.write(source.read())
                weights = [numpy_helper.from_array(made[name], name).SerializeToString() for name in parameters]
                save_checkpoint(weights, [], os.path.join(folder, "checkpoint"), False)
                adamw(os.path.join(folder, "optimizer_model.onnx"))
                if rewrites:
                    # What generate_artifacts writes of a model with batch normalizations: it is refused.
                    names = ["x", "scale", "bias", "mean", "variance"]
                    node = onnx.helper.make_node("BatchNormalization", names, ["y", "new_mean", "new_variance"], training_mode=0)
                    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in names]
                    evaluation = onnx.helper.make_graph([node], "eval", values, [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
                    onnx.save(onnx.helper.make_model(evaluation, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8),
                              os.path.join(folder, "eval_model.onnx"))
                    with self.assertWarnsRegex(ckpt_opt.CkptOptWarning, "the module cannot evaluate"):
                        module = ckpt_opt.ort.module(folder, "fixed+80%", dims)
                    nodes = len(onnx.load(os.path.join(folder, "training_model.ckpt-opt.onnx")).graph.node)
                    self.assertNotEqual(nodes, len(onnx.load(path).graph.node))
                else:
                    state = api.CheckpointState.load_checkpoint(os.path.join(folder, "checkpoint"))
                    module = api.Module(path, state)
                optimizer = api.Optimizer(os.path.join(folder, "optimizer_model.onnx"), module)
                module.train()
                row = []
                for batch in batches(inputs, 3, user):
                    row.append(np.float32(module(*batch)).tobytes())
                    optimizer.step()
                    module.lazy_reset_grad()
                losses.append(row)
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(set(losses[0])), 3)


class Documents(unittest.TestCase):
    def test_the_page_about_python_has_every_name(self):
        with open(os.path.join(ROOT, "docs", "python.md")) as file:
            page = file.read()
        public = [name for name in dir(ckpt_opt.ort) if not name.startswith("_") and
                  getattr(getattr(ckpt_opt.ort, name), "__module__", None) == "ckpt_opt.ort"]
        results = [name for name in vars(ckpt_opt.Result) if not name.startswith("_")]
        names = [*ckpt_opt.__all__, *public, *results, *ckpt_opt._DEFAULTS]
        self.assertGreater(len(names), 50)
        self.assertEqual([name for name in names if f"`{name}`" not in page and f"`{name}(" not in page], [])


if __name__ == "__main__":
    unittest.main()
