"""Makes numbers of a graph's symbolic dimensions, as they are in a graph that was exported with a fixed batch.

Usage: fix_dims.py IN OUT NAME=N ...

Changes what the graph declares of its inputs, outputs and results; nodes and external data stay as they are (the latter is read from
the folder of OUT). Exit status 2 for a name that no dimension has.
"""

import argparse

import onnx


def fix(graph, sizes):
    """Returns the names that were found."""
    found = set()
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                found.add(dim.dim_param)
                dim.dim_value = sizes[dim.dim_param]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", metavar="IN")
    parser.add_argument("fixed", metavar="OUT")
    parser.add_argument("dims", nargs="+", metavar="NAME=N")
    args = parser.parse_args()
    try:
        sizes = {name: int(size) for name, size in (dim.split("=") for dim in args.dims)}
    except ValueError:
        parser.error("a dimension is NAME=N, with an integer N")
    model = onnx.load(args.original, load_external_data=False)
    missing = sorted(set(sizes) - fix(model.graph, sizes))
    if missing:
        parser.error("no dimension is called " + ", ".join(missing))
    onnx.save(model, args.fixed)


if __name__ == "__main__":
    main()
