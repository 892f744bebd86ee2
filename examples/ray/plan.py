"""Plans graphs for several budgets on all machines of a Ray cluster: a graph for each rank, or a table to choose from.

    pip install ray, and `pip install .` in the folder of ckpt-opt
    python examples/ray/plan.py rank0.onnx rank1.onnx --budget 8GiB --budget 6GiB --dim batch=32 [--output FOLDER]

Prints a JSON object a line, in the order of the command line, whichever machine is ready first. With --output, what fits is
written to FOLDER/NAME.BUDGET.onnx. Graphs travel as bytes, so their weights have to be in the file (or inputs, as those of
`generate_artifacts` are).
"""

import argparse
import json
import os

import ckpt_opt
import ray


@ray.remote(num_cpus=1)
def plan(model, budget, dims):
    """The figures of one plan and the file, on whatever machine has a processor free."""
    figures = {"machine": ray.get_runtime_context().get_node_id()}
    try:
        result = ckpt_opt.optimize(model, None, budget, dims)
    except ckpt_opt.InfeasibleError as error:
        return {**figures, "smallest_peak_bytes": error.smallest_peak_bytes}, None
    for key in ("peak_before_bytes", "peak_after_bytes", "overhead", "recomputed_nodes"):
        figures[key] = result.figures[key]
    return figures, result.to_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--budget", action="append", required=True)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--output", metavar="FOLDER")
    parser.add_argument("--address", help="of the cluster; without it, Ray finds one or starts this machine's")
    args = parser.parse_args()
    ray.init(address=args.address, log_to_driver=False)
    dims = {name: int(size) for name, size in (dim.rsplit("=", 1) for dim in args.dim)}
    planned = []
    for path in args.models:
        with open(path, "rb") as file:
            model = ray.put(file.read())
        planned += [(path, budget, plan.remote(model, budget, dims)) for budget in args.budget]
    for path, budget, future in planned:
        figures, written = ray.get(future)
        if args.output and written is not None:
            name, _ = os.path.splitext(os.path.basename(path))
            figures["output"] = os.path.join(args.output, f"{name}.{budget}.onnx")
            with open(figures["output"], "wb") as file:
                file.write(written)
        print(json.dumps({"model": path, "budget": budget, **figures}))


if __name__ == "__main__":
    main()
