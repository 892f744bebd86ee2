"""Writes ONNX Runtime's profile of a training graph, fed random inputs: what `ckpt-opt --profile` reads.

Usage: make_profile.py MODEL PROFILE.json --dim NAME=N ... [--steps N] [--threads N]

The graph runs unoptimized, in DEFAULT order. The first step is there as well; ckpt-opt drops it.
"""

import argparse
import os
import tempfile

import onnxruntime as ort

from run_step import bound_step, load_model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("profile")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.seed = args.inputs_of = None
    args.expose_statistics = False
    model, arrays, outputs, _ = load_model(args.model, args)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "p")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        for _ in range(args.steps):
            session.run_with_iobinding(bound_step(session, values, outputs))
        written = session.end_profiling()
        with open(written, "rb") as source, open(args.profile, "wb") as target:
            target.write(source.read())


if __name__ == "__main__":
    main()
