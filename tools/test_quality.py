"""The benchmark's rules, against a planner that breaks them."""

import contextlib
import io
import os
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import quality

# Prints the figures for its --budget, or for all of them to `sweep`: "min" is 100, and the unmodified graph takes 200.
PLANNER = """\
    #!{python}
    import json, sys
    def row(budget):
        overhead = {overhead}
        return dict(
            budget_bytes=budget, fixed_bytes=0, peak_before_bytes=200, peak_after_bytes={peak}, overhead=overhead,
            fits=overhead is not None, lower_bound_overhead=0.0, recomputed_nodes=1, barriers=2, nodes_before=3)
    budgets = [sys.argv[i + 1] for i, argument in enumerate(sys.argv) if argument == "--budget"]
    rows = [row(100 if budget == "min" else int(budget)) for budget in budgets]
    if sys.argv[1] == "sweep":
        print(json.dumps(dict(fixed_bytes=0, strategies=[dict(rows=rows)])))
    elif rows[0]["fits"]:
        print(json.dumps(rows[0]))
    else:
        sys.exit(3)
"""


class Sweep(unittest.TestCase):
    def sweep(self, overhead="(200 - budget) / 1000", peak="budget", options=()):
        """The exit status and the row, over the budgets 100, 125, 150, 175 and 200."""
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "release", "planner")
            os.makedirs(os.path.dirname(binary))
            with open(binary, "w") as file:
                file.write(textwrap.dedent(PLANNER).format(python=sys.executable, overhead=overhead, peak=peak))
            os.chmod(binary, 0o755)
            arguments = ["quality.py", "--binary", binary, "--only", "chain_32", "--sweep", "5", *options]
            printed = io.StringIO()
            with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(printed):
                with contextlib.redirect_stderr(io.StringIO()):
                    status = quality.main()
        cells = printed.getvalue().splitlines()[-1].strip("| ").split(" | ")
        return status, dict(zip(["graph", "budgets", "infeasible", "over", "rises", "largest", "where"], cells))

    def test_falling_overheads_pass(self):
        status, row = self.sweep()
        self.assertEqual((status, row["rises"], row["infeasible"], row["over"]), (0, "0", "0", "0"))

    def test_a_rise_is_found(self):
        # 10, 7.5, 5, 8 and 0 %: the fourth is three points above the third.
        status, row = self.sweep("0.08 if budget == 175 else (200 - budget) / 1000")
        self.assertEqual((status, row["rises"], row["largest"]), (1, "1", "3.00 points"))
        self.assertEqual(row["where"], "fixed + 88 %")  # 175 of 200

    def test_a_gap_in_feasibility_is_found(self):
        status, row = self.sweep("None if budget == 150 else 0.1")
        self.assertEqual((status, row["infeasible"]), (1, "1"))

    def test_a_broken_budget_is_found(self):
        status, row = self.sweep(peak="budget + (budget == 125)")
        self.assertEqual((status, row["over"]), (1, "1"))

    def test_all_budgets_can_be_planned_by_one_run(self):
        together = ["--together"]
        status, row = self.sweep(options=together)
        self.assertEqual((status, row["rises"], row["infeasible"], row["over"]), (0, "0", "0", "0"))
        status, row = self.sweep("0.08 if budget == 175 else (200 - budget) / 1000", options=together)
        self.assertEqual((status, row["rises"], row["where"]), (1, "1", "fixed + 88 %"))
        status, row = self.sweep("None if budget == 150 else 0.1", options=together)
        self.assertEqual((status, row["infeasible"]), (1, "1"))


if __name__ == "__main__":
    unittest.main()
