"""What the runtime checks must see, and what they must not miss: python -m unittest discover tools"""

import os
import shutil
import tempfile
import unittest
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

import check_model
import check_page
import cut_down
import measure
import truth_plot
import truth_table

MODELS = os.path.join(os.path.dirname(measure.TOOLS), "testdata", "models")
CROSS_MODAL = os.path.join(MODELS, "cross_modal.onnx")


def recompute_first_activation(path, output, momentum):
    """Recomputes the first BatchNormInternal and its Relu for the gradients, behind a barrier; the copy of
    BatchNormInternal gets `momentum`."""
    model = onnx.load(path)
    nodes = list(model.graph.node)
    normalization = next(node for node in nodes if node.op_type == "BatchNormInternal")
    relu = next(node for node in nodes if node.op_type == "Relu" and node.input[0] == normalization.output[0])
    gradients = [node for node in nodes if node.op_type.endswith("Grad") and relu.output[0] in node.input]
    copy = onnx.NodeProto()
    copy.CopyFrom(normalization)
    copy.name += "_copy"
    copy.input[0] = "late"
    copy.output[:] = [name + "_copy" for name in normalization.output]
    for attribute in copy.attribute:
        if attribute.name == "momentum":
            attribute.f = momentum
    barrier = helper.make_node("PassThrough", [normalization.input[0], gradients[0].input[0]], ["late", "unused"],
                               name="barrier", domain="com.microsoft")
    again = helper.make_node("Relu", [copy.output[0]], ["again"], name="again")
    at = nodes.index(gradients[0])
    for gradient in gradients:
        gradient.input[:] = ["again" if name == relu.output[0] else name for name in gradient.input]
    nodes[at:at] = [barrier, copy, again]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, output)


class CheckModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.original = check_model.Runs(CROSS_MODAL, ["batch=2"], cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compared(self, momentum):
        path = os.path.join(self.folder.name, "rewritten.onnx")
        recompute_first_activation(CROSS_MODAL, path, momentum)
        return check_model.compare(self.original, check_model.Runs(path, ["batch=2"], self.folder.name))

    def test_a_page_that_asks_for_something_or_shows_nothing_is_told(self):
        page = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
        shown = '<line id="cursor" y1="2" x1="3"></line><p>after, step 3 of 9 (Conv): 2 MiB</p>'
        self.assertEqual(check_page.faults(page, shown, []), [])
        self.assertEqual(len(check_page.faults(page, "", [])), 2)
        self.assertEqual(len(check_page.faults(page + '<img src="http://elsewhere/a.png">', shown, [])), 1)
        self.assertEqual(len(check_page.faults(page, shown, ["CONSOLE: an error"])), 1)

    def test_correct_recomputation_passes_and_saves_memory(self):
        result = self.compared(momentum=1.0)
        self.assertTrue(result["ok"], result["differing"])
        # Dropped between forward and backward: the Relu's output, 2 * 32 * 64 * 64 floats of 4 bytes.
        saved = result["original"]["default"] - result["rewritten"]["default"]
        self.assertAlmostEqual(saved, 2 * 32 * 64 * 64 * 4, delta=10_000)

    def test_second_update_of_running_statistics_is_seen(self):
        result = self.compared(momentum=0.9)
        self.assertFalse(result["ok"])
        statistics = {name.split(": ", 1)[1] for name in result["differing"]}
        self.assertEqual(statistics, {"input:img.net.0.1.running_mean", "input:img.net.0.1.running_var"})

    def test_every_gradient_and_statistic_is_compared(self):
        graph = onnx.load(CROSS_MODAL).graph
        buffers = [info.name for info in graph.input if info.name.endswith("_grad.accumulation.buffer")]
        statistics = {name for node in graph.node if node.op_type == "BatchNormInternal" for name in node.input[3:5]}
        expected = {info.name for info in graph.output} | {"input:" + name for name in buffers + sorted(statistics)}
        self.assertEqual(set(self.original.default["digests"]), expected)


class Levels(unittest.TestCase):
    """What differs at ENABLE_ALL, beside how much the original differs from itself between levels."""

    def compared(self, own):
        with tempfile.TemporaryDirectory() as folder:
            runs = [mock.Mock(default={"digests": {}, "caller_bytes": 0, "not_finite": []}, priority=None, enable_all=None) for _ in range(2)]
            for place, (run, x) in enumerate(zip(runs, (1.0, 1.0001))):
                run.dump = os.path.join(folder, f"{place}.npz")
                np.savez(run.dump, names=np.array(["input:x", "input:y"]), **{"0": np.float32([x, 2]), "1": np.float32([3, 4])})
            runs[0].between_levels.return_value = own
            return check_model.compare(*runs)

    def test_what_differs_more_than_between_levels_is_seen(self):
        for own in ({}, {"input:x": 1e-6}, {"input:y": 1.0}):
            result = self.compared(own)
            self.assertFalse(result["ok"])
            self.assertEqual((result["most_different"], result["level_dependent"]), ("input:x", []))

    def test_what_differs_as_much_between_levels_is_named(self):
        result = self.compared({"input:x": 1e-5})
        self.assertTrue(result["ok"])
        self.assertEqual((result["most_different"], result["level_dependent"]), (None, ["input:x"]))


class CutDown(unittest.TestCase):
    def test_what_shows_a_fault_is_left_with_what_it_needs(self):
        # Two chains of forty, and a node that reads the ends of both.
        nodes = [([f"{chain}{place}"], [f"{chain}{place + 1}"]) for place in range(40) for chain in "ab"] + [(["a40", "b40"], ["c"])]
        fault = nodes.index((["a6"], ["a7"]))
        tried = []
        left = cut_down.cut_down(nodes, lambda places: tried.append(places) or fault in places)
        self.assertEqual([nodes[place][1] for place in sorted(left)], [[f"a{place}"] for place in range(1, 8)])
        self.assertLess(len(tried), 60)

    def test_a_part_has_the_values_of_its_nodes_alone(self):
        model = onnx.load(CROSS_MODAL)
        part = cut_down.part(model, [1, 0])
        self.assertEqual(list(part.graph.node), list(model.graph.node)[:2])
        self.assertEqual(len(part.graph.output), 0)
        written = {tensor for node in part.graph.node for tensor in node.output}
        self.assertLessEqual({value.name for value in part.graph.value_info}, written)


class Measure(unittest.TestCase):
    def test_peak_is_that_of_the_live_tensors(self):
        size = 1_000_000  # floats
        nodes = [
            helper.make_node("Neg", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Sub", ["b", "a"], ["c"]),
            helper.make_node("Neg", ["c"], ["y"]),
        ]
        tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
        model = helper.make_model(helper.make_graph(nodes, "chain", tensors[:1], tensors[1:]),
                                  opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chain.onnx")
            onnx.save(model, path)
            peaks = [measure.step(path)["peak_bytes"] for _ in range(2)]
        self.assertEqual(peaks[0], peaks[1])
        # a, b and c at once; what the runtime keeps for a frame of five values is below a kilobyte.
        self.assertAlmostEqual(peaks[0], 3 * 4 * size, delta=1_000)

    def test_failure_carries_the_reason(self):
        with self.assertRaisesRegex(measure.StepFailed, "bind batch with --dim"):
            measure.step(CROSS_MODAL)


class TruthTable(unittest.TestCase):
    def test_what_is_recorded_is_found_and_a_broken_line_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.jsonl")
            with open(path, "w") as file:
                file.write('{"model": "a", "settings": "lean", "budget": "min", "ok": true}\n{"model": "b", "sett')
            self.assertEqual(list(truth_table.recorded(path)), [("a", "lean", "min")])

    def test_each_way_to_run_is_compared_with_its_own_prediction(self):
        names = {way: name for name, way in truth_table.WAYS.items()}
        ways = ["default", "priority", "enable_all", "enable_all_priority"]
        mb = 10**6
        planned = {"fixed_bytes": 100 * mb, "budget_bytes": 1200 * mb, "peak_before_bytes": 2100 * mb, "peak_after_bytes": 1100 * mb,
                   "peaks_after": [dict(zip(("order", "level"), names[way]), bytes=(1100 - 100 * i) * mb) for i, way in enumerate(ways)]}
        check = {"ok": True, "original": {"default": 2000 * mb}, "rewritten": dict(zip(ways, (1000 * mb, 900 * mb, 800 * mb, 700 * mb)))}
        self.assertEqual(truth_table.faults(planned, check, "fixed+50%", "lean"), [])
        check["rewritten"]["enable_all"] = 1000 * mb
        self.assertEqual(truth_table.faults(planned, check, "fixed+50%", "lean"), ["peak after predicted -20.0 % (enable_all)"])
        check["rewritten"]["enable_all"] = 800 * mb
        check["original"]["priority"] = 2400 * mb
        planned["peaks_before"] = [dict(zip(("order", "level"), names[way]), bytes=2100 * mb) for way in ways]
        self.assertEqual(truth_table.faults(planned, check, "fixed+50%", "lean"), ["peak before predicted -16.7 % (priority)"])

    def test_a_table_says_as_a_whole_what_its_rows_say(self):
        def row(model, took, **more):
            way = {"order": "DEFAULT", "level": "ORT_DISABLE_ALL", "bytes": 1100}
            return {"model": model, "settings": "lean", "tried": "min", "faults": [], "plan": {"fixed_bytes": 100, "peaks_after": [way]},
                    "check": {"differing": [], "original": {}, "rewritten": {"default": took}}, **more}

        rows = [row("a", 1000), row("b", 1250, faults=["250 bytes over budget (default)"]), {"static": "infeasible: no"}, {"said": "it failed"}]
        self.assertEqual(truth_table.summary(rows), [
            "2 plans were run; 1 are infeasible, 0 were written and not run, 1 graphs fail.",
            "Over budget: 1, b min. Other bits at DISABLE_ALL: 0.",
            "Predicted beside measured, what was written: -20.00 % (b, default) to +0.00 % (a, default); 1 of 2 runs within 1 % (default settings) or 0.5 % (lean).",
        ])
        rows[0]["check"]["differing"] = ["enable_all: w_grad", "enable_all_priority: w_grad"]
        self.assertEqual(truth_table.summary(rows)[1], "Over budget: 1, b min. Other bits at DISABLE_ALL: 0. At ENABLE_ALL: 1, a min.")
        rows[1]["check"]["differing"] = ["priority: w_grad"]
        self.assertIn("Other bits at DISABLE_ALL: 1, b min. At ENABLE_ALL: 1, a min.", truth_table.summary(rows)[1])

    def test_files_of_tensors_are_found_from_another_folder_and_by_a_changed_model(self):
        weight = onnx.numpy_helper.from_array(np.arange(8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3), "w")
        # At ENABLE_ALL the runtime reads the weight of a convolution before it runs.
        nodes = [helper.make_node("Dropout", ["x"], ["a"]), helper.make_node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1])]
        tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 4, 4]) for name in "xy"]
        model = helper.make_model(helper.make_graph(nodes, "kept_apart", tensors[:1], tensors[1:], [weight]),
                                  opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            path = os.path.join(folder, "model.onnx")
            onnx.save(model, path, save_as_external_data=True, location="sub.data")
            measure.link_external_data(path, other)
            moved = os.path.join(other, "moved.onnx")
            shutil.copy(path, moved)
            steps = [measure.step(place, seed=seed, level="enable_all") for place in (path, moved) for seed in (None, 1)]
            self.assertEqual(len({step["digests"]["y"] for step in steps}), 1)

    def test_a_row_is_a_point_in_each_panel(self):
        row = {"model": "a", "settings": "lean", "tried": "min", "times": {"added": 0.1},
               "plan": {"peak_after_bytes": 3e6, "fixed_bytes": 1e6, "overhead": 0.1},
               "check": {"rewritten": {"default": 2e6, "priority": 1e6}}}
        self.assertEqual(truth_plot.points([row, {"model": "b"}]), ([(2.0, 2.0, "lean")], [(10.0, 10.0, "lean")]))
        with tempfile.TemporaryDirectory() as folder:
            images = []
            for name in ("one.svg", "two.svg"):
                truth_plot.draw([row, {"model": "b"}], os.path.join(folder, name))
                with open(os.path.join(folder, name)) as file:
                    images.append(file.read())
        self.assertEqual(images[0], images[1])
        self.assertIn("<svg", images[0])


if __name__ == "__main__":
    unittest.main()
