"""What the barriers of a rewritten graph cost: steps with and without them, by turns in one process.

Usage: barrier_cost.py REWRITTEN --dim NAME=N ... [--settings lean|default] [--rounds N]

Prints JSON: the number of barriers, the least seconds of both, and the microseconds that one barrier takes.
Without them the runtime orders the nodes as it likes, and needs more memory. One thread, no arena, DISABLE_ALL.
"""

import json
import os
import tempfile

import onnx

from step_times import arguments, compare


def without_barriers(graph):
    """Takes the barriers out of the graph; how many there were."""
    source = {}
    kept = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = source.get(name, name)
        if node.op_type == "PassThrough":
            source.update(zip(node.output, node.input))
        else:
            kept.append(node)
    count = len(graph.node) - len(kept)
    del graph.node[:]
    graph.node.extend(kept)
    return count


def main():
    parser = arguments(__doc__)
    parser.add_argument("rewritten")
    args = parser.parse_args()
    model = onnx.load(args.rewritten, load_external_data=False)
    count = without_barriers(model.graph)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(args.rewritten))) as folder:
        without = os.path.join(folder, "without.onnx")
        onnx.save(model, without)
        times = compare(without, args.rewritten, args)
    added = times["rewritten"] - times["original"]
    print(json.dumps({
        "barriers": count,
        "without": times["original"],
        "with": times["rewritten"],
        "added": times["added"],
        "us_per_barrier": 1e6 * added / count if count else None,
    }))


if __name__ == "__main__":
    main()
