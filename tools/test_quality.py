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

# Prints the figures for its --budget: "min" is 100, and the unmodified graph takes 200.
PLANNER = """\
    #!{python}
    import json, sys
    budget = sys.argv[sys.argv.index("--budget") + 1]
    budget = 100 if budget == "min" else int(budget)
    overhead = {overhead}
    if overhead is None:
        sys.exit(3)
    print(json.dumps(dict(
        budget_bytes=budget, fixed_bytes=0, peak_before_bytes=200, peak_after_bytes={peak}, overhead=overhead,
        lower_bound_overhead=0.0, recomputed_nodes=1, barriers=2, nodes_before=3)))
"""


class Sweep(unittest.TestCase):
    def sweep(self, overhead="(200 - budget) / 1000", peak="budget"):
        """The exit status and the row, over the budgets 100, 125, 150, 175 and 200."""
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "release", "planner")
            os.makedirs(os.path.dirname(binary))
            with open(binary, "w") as file:
                file.write(textwrap.dedent(PLANNER).format(python=sys.executable, overhead=overhead, peak=peak))
            os.chmod(binary, 0o755)
            arguments = ["quality.py", "--binary", binary, "--only", "chain_32", "--sweep", "5"]
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


if __name__ == "__main__":
    unittest.main()
