"""Runs examples/ray/plan.py on a cluster of two machines with a processor each, and compares with plans made here."""

import json
import os
import subprocess
import sys
import tempfile

import ckpt_opt
from ray.cluster_utils import Cluster

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MODELS = [os.path.join(ROOT, "testdata/models", name) for name in ("triplet.onnx", "cross_modal.onnx")]
BUDGETS = ["fixed+80%", "fixed+60%", "1MB"]
DIMS = {"batch": 16}


def main():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, os.path.join(ROOT, "examples/ray/plan.py"), *MODELS, "--address", cluster.address,
                       "--output", folder, "--dim", "batch=16"]
            for budget in BUDGETS:
                command += ["--budget", budget]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows = [json.loads(line) for line in printed.splitlines()]
            compare(rows)
    finally:
        cluster.shutdown()


def compare(rows):
    assert [(row["model"], row["budget"]) for row in rows] == [(model, budget) for model in MODELS for budget in BUDGETS], rows
    assert len({row["machine"] for row in rows}) == 2, rows
    for row in rows:
        try:
            here = ckpt_opt.optimize(row["model"], None, row["budget"], DIMS)
        except ckpt_opt.InfeasibleError as error:
            assert row["smallest_peak_bytes"] == error.smallest_peak_bytes and "output" not in row, row
            continue
        assert row["peak_after_bytes"] == here.peak_after_bytes, row
        with open(row["output"], "rb") as file:
            assert file.read() == here.to_bytes(), row


if __name__ == "__main__":
    main()
