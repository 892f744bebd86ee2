"""Does ONNX Runtime make the same of a rewritten graph as of its original, node by node?

Usage: same_fusions.py ORIGINAL REWRITTEN [--level basic|extended|all]

Of both graphs a session saves what it has made of them, without running anything. Each node of the rewritten one has to have the operator, and the
attributes that the node of the original has which writes the same, copies (NAME/recompute_N) included: a node that is fused with another, or is
not, rounds otherwise. So does a Gemm that adds what another one adds in the original. Which way a product reads its second matrix, and who adds the bias of a
Gelu, changes no bits; tensors that are only in one of both (merged, or forwarded) are left out. Run it by the runtime that is meant: of builds
without training, the bits have to be the same at every level. Prints each node that differs; exit status 1 if any does.
"""

import argparse
import os
import re
import sys
import tempfile

import onnx
import onnxruntime as ort

LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
OFF = "TransposeOptimizer;TransposeOptimizer_CPUExecutionProvider;NchwcTransformer"
OURS = "ckpt-opt/"
OWN = re.compile(r"(/recompute_\d+|/barrier_\d+|/kept(_\d+)?)+$")
NO_MATTER = ("__recompute", "activation___recompute", "transB", "transBatchA", "transBatchB")


def base(name):
    """The tensor of the original that the name stands for."""
    return OWN.sub("", name)


def optimized(path, level):
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        options.log_severity_level = 3
        options.add_session_config_entry("optimization.disable_specified_optimizers", OFF)
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath).graph


def told(node):
    """What it computes, whatever it reads; of bodies nothing."""
    attributes = (attribute for attribute in node.attribute if attribute.name not in NO_MATTER and not attribute.HasField("g"))
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in attributes)
    # With its bias a Gelu computes the same.
    return node.domain, node.op_type.removeprefix("Bias"), attributes


def added(node):
    """What a Gemm adds, by its name in the original."""
    return base(node.input[2]) if node.op_type.endswith("Gemm") and len(node.input) > 2 else ""


def differing(original, rewritten):
    """By node of the rewritten graph that is not what the original has: what it writes, what it is and what that is there."""
    known = {output: node for node in original.node for output in node.output if output}
    for node in rewritten.node:
        written = next((output for output in node.output if output), "")
        of = None if node.name.startswith(OURS) else known.get(base(written))
        # Those are forwarded, or made again by other operators.
        skipped = of is None or "Identity" in (node.op_type, of.op_type) or of.op_type == "Dropout"
        if skipped:
            continue
        if told(node) != told(of):
            yield written, node.op_type, of.op_type
        elif added(node) != added(of):
            yield written, f"{node.op_type} that adds {added(node)}", f"one that adds {added(of)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("rewritten")
    parser.add_argument("--level", choices=list(LEVELS), default="all")
    args = parser.parse_args()
    found = list(differing(optimized(args.original, args.level), optimized(args.rewritten, args.level)))
    print("".join(f"{written}: {has}, in the original {had}\n" for written, has, had in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
