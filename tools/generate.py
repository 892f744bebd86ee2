"""Makes training graphs of any size, for benchmarks: forward and backward part in one file.

Usage: generate.py FAMILY NODES OUT.onnx [--seed N]

The families, of about NODES nodes each (at least 100):

    transformer   blocks of attention and a wide layer, with dropout, as gpt2
    cnn           residual blocks of convolution, batch normalization and Relu, in three stages
    rnn           four LSTM layers, unrolled
    layered       layers of random products, each read by some nodes of the next layers: the random
                  layered graphs of Gagrani et al. (2022), which Moccasin was judged on, with gradients
    mixed         one layer of any kind after another, first of images, then of rows, some of which an earlier result is
                  added to: for tests
    chain         a uniform chain of Gelu, each computed in equal time and as large as any other (the
                  chain of Griewank and Walther's Revolve)

Shapes are concrete and small enough that graphs of a thousand nodes run in onnxruntime-training. The same
arguments give the same bytes. The seed matters to `layered` and `mixed` alone. Needs tools/requirements.txt.
"""

import argparse
import math
import random

from training_graph import INT64, TrainingGraph, save


def transformer(blocks):
    batch, tokens, width, heads = 4, 64, 64, 4
    graph = TrainingGraph("transformer")
    x = graph.input("input", [batch, tokens, width])
    labels = graph.input("labels", [batch * tokens], INT64)
    for block in range(blocks):
        def dense(x, part, outputs, name=f"block.{block}"):
            weight = graph.weight(f"{name}.{part}.weight", graph.shapes[x][-1], outputs)
            return graph.add(graph.matmul(x, weight), graph.weight(f"{name}.{part}.bias", outputs))

        normal = graph.layer_norm(x, f"block.{block}.ln1")
        parts = graph.split(dense(normal, "qkv", 3 * width), 3)
        query, key, value = (graph.reshape(part, batch, tokens, heads, width // heads) for part in parts)
        query, value = (graph.transpose(part, 0, 2, 1, 3) for part in (query, value))
        scores = graph.softmax(graph.matmul(query, graph.transpose(key, 0, 2, 3, 1)))
        mixed = graph.transpose(graph.matmul(graph.dropout(scores, 0.1), value), 0, 2, 1, 3)
        mixed = graph.reshape(mixed, batch, tokens, width)
        x = graph.add(x, graph.dropout(dense(mixed, "out", width), 0.1))
        normal = graph.layer_norm(x, f"block.{block}.ln2")
        wide = graph.unary("Gelu", dense(normal, "fc", 4 * width))
        x = graph.add(x, graph.dropout(dense(wide, "proj", width), 0.1))
    rows = graph.reshape(graph.layer_norm(x, "ln"), batch * tokens, width)
    graph.cross_entropy(graph.linear(rows, graph.weight("head.weight", 100, width)), labels)
    return graph


def cnn(blocks):
    batch = 4
    graph = TrainingGraph("cnn")
    x = graph.input("input", [batch, 3, 32, 32])
    labels = graph.input("labels", [batch], INT64)

    def unit(x, name, channels, stride=1, window=3):
        weight = graph.weight(name + ".conv.weight", channels, graph.shapes[x][1], window, window)
        return graph.batch_norm(graph.conv(x, weight, stride), name + ".bn")

    x = graph.unary("Relu", unit(x, "stem", 16))
    for block in range(blocks):
        name, stage = f"block.{block}", 3 * block // blocks
        channels, before = 16 << stage, graph.shapes[x][1]
        stride = 1 if channels == before else 2
        inner = graph.unary("Relu", unit(x, name + ".1", channels, stride))
        inner = unit(inner, name + ".2", channels)
        skipped = x if stride == 1 else unit(x, name + ".skip", channels, stride, window=1)
        x = graph.unary("Relu", graph.add(inner, skipped))
    pooled = graph.mean_of_images(x)
    head, bias = graph.weight("head.weight", 10, graph.shapes[pooled][1]), graph.weight("head.bias", 10)
    graph.cross_entropy(graph.linear(pooled, head, bias), labels)
    return graph


def rnn(steps):
    batch, width, layers = 128, 64, 4
    graph = TrainingGraph("rnn")
    xs = [graph.input(f"input.{step}", [batch, width]) for step in range(steps)]
    labels = graph.input("labels", [batch], INT64)
    for layer in range(layers):
        of_x, of_h = (graph.weight(f"lstm.{layer}.{which}.weight", 4 * width, width) for which in ("x", "h"))
        bias = graph.weight(f"lstm.{layer}.bias", 4 * width)
        h, c = (graph.input(f"lstm.{layer}.{which}", [batch, width]) for which in "hc")
        for step in range(steps):
            sums = graph.add(graph.linear(xs[step], of_x, bias), graph.linear(h, of_h))
            admit, forget, show, new = graph.split(sums, 4)
            admitted = graph.multiply(graph.unary("Sigmoid", admit), graph.unary("Tanh", new))
            c = graph.add(graph.multiply(graph.unary("Sigmoid", forget), c), admitted)
            h = xs[step] = graph.multiply(graph.unary("Sigmoid", show), graph.unary("Tanh", c))
    graph.cross_entropy(graph.linear(xs[-1], graph.weight("head.weight", 10, width)), labels)
    return graph


def layered(layers, seed):
    rows, per_layer = 128, 5
    chance = random.Random(seed)
    graph = TrainingGraph("layered")
    before = [[graph.input("input", [rows, 64])]]
    labels = graph.input("labels", [rows], INT64)
    unread = []
    for layer in range(layers):
        made = []
        for place in range(per_layer):
            # Mostly the layer before, now and then an earlier one; nothing stays unread.
            sources = [chance.choice(before[-1 if chance.random() < 0.8 else chance.randrange(-min(4, len(before)), 0)])
                       for _ in range(chance.choice([1, 2, 2, 3]))]
            if place < len(unread):
                sources[0] = unread[place]
            width = chance.choice([16, 32, 64, 128])
            made.append(sum_of_products(graph, f"{layer}.{place}", dict.fromkeys(sources), width, chance))
        unread = [tensor for tensor in before[-1] if layer and not graph.is_read(tensor)]
        before.append(made)
    scores = sum_of_products(graph, "head", dict.fromkeys(unread + before[-1]), 10, chance)
    graph.cross_entropy(scores, labels)
    return graph


def sum_of_products(graph, name, sources, width, chance):
    total = None
    for position, source in enumerate(sources):
        weight = graph.weight(f"node.{name}.{position}.weight", width, graph.shapes[source][1])
        product = graph.linear(source, weight)
        total = graph.add(total, product) if total else product
    return graph.unary(chance.choice(["Relu", "Tanh", "Gelu", "Sigmoid"]), total)


ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Gelu"]


def mixed(layers, seed):
    batch, chance = 128, random.Random(seed)
    graph = TrainingGraph("mixed")
    x = graph.input("input", [batch, 4, 16, 16])
    labels = graph.input("labels", [batch], INT64)
    images = layers // 3
    for layer in range(images):
        x = layer_of_images(graph, x, f"image.{layer}", chance)
    x = graph.mean_of_images(x) if chance.random() < 0.5 else graph.reshape(x, batch, math.prod(graph.shapes[x][1:]))
    x = graph.linear(x, graph.weight("middle.weight", 256, graph.shapes[x][1]))
    earlier = []
    for layer in range(images, layers):
        x = layer_of_rows(graph, x, f"row.{layer}", chance)
        if earlier and chance.random() < 0.3:
            x = graph.add(x, chance.choice(earlier[-4:]))
        earlier.append(x)
    graph.cross_entropy(graph.linear(x, graph.weight("head.weight", 10, graph.shapes[x][1])), labels)
    return graph


def layer_of_images(graph, x, name, chance):
    channels, edge = graph.shapes[x][1:3]
    kind = chance.choice(["conv", "conv", "conv", "norm", "pool", "dropout"])
    if kind == "dropout":
        return graph.dropout(x, 0.1)
    if kind == "pool":
        return graph.max_pool(x) if edge > 4 else graph.unary(chance.choice(ACTIVATIONS), x)
    window = chance.choice([1, 3])
    made = graph.conv(x, graph.weight(name + ".weight", chance.choice([4, 8]), channels, window, window))
    if kind == "norm":
        made = graph.batch_norm(made, name + ".bn")
    if graph.shapes[made] == graph.shapes[x] and chance.random() < 0.5:
        made = graph.add(made, x)
    return graph.unary(chance.choice(ACTIVATIONS), made)


def layer_of_rows(graph, x, name, chance):
    """As wide as it was."""
    rows, width = graph.shapes[x]
    kind = chance.choice(["linear", "linear", "matmul", "matmul", "norm", "softmax", "dropout", "gate", "heads", "attention", "cube"])
    if kind == "norm":
        return graph.layer_norm(x, name)
    if kind == "softmax":
        return graph.softmax(x)
    if kind == "dropout":
        return graph.dropout(x, 0.1)
    if kind == "gate":
        gates, values = graph.split(x, 2)
        gated = graph.multiply(graph.unary("Sigmoid", gates), graph.unary("Tanh", values))
        return graph.linear(gated, graph.weight(name + ".weight", width, width // 2))
    if kind == "heads":
        heads = graph.transpose(graph.reshape(x, rows, 8, width // 8), 1, 0, 2)
        return graph.reshape(graph.transpose(graph.unary("Gelu", heads), 1, 0, 2), rows, width)
    if kind == "attention":
        keys = graph.transpose(graph.reshape(x, 8, rows // 8, width), 0, 2, 1)
        values = graph.reshape(x, 8, rows // 8, width)
        scores = graph.softmax(graph.scale(graph.matmul(values, keys), width ** -0.5))
        return graph.reshape(graph.add(graph.matmul(scores, values), values), rows, width)
    if kind == "cube":
        cube = graph.reshape(x, 8, rows // 8, width)
        cube = graph.add(graph.matmul(cube, graph.weight(name + ".weight", width, width)), graph.weight(name + ".bias", width))
        return graph.reshape(graph.unary(chance.choice(ACTIVATIONS), cube), rows, width)
    if kind == "linear":
        bias = graph.weight(name + ".bias", width) if chance.random() < 0.5 else None
        made = graph.linear(x, graph.weight(name + ".weight", width, width), bias)
    else:
        made = graph.add(graph.matmul(x, graph.weight(name + ".weight", width, width)), graph.weight(name + ".bias", width))
    return graph.unary(chance.choice(ACTIVATIONS), made) if chance.random() < 0.8 else made


def chain(length):
    graph = TrainingGraph("chain")
    x = graph.input("input", [256, 256])
    for _ in range(length):
        x = graph.unary("Gelu", x)
    graph.output(x)
    graph.backward({x: graph.input("output_grad", [256, 256])})
    return graph


FAMILIES = {"transformer": transformer, "cnn": cnn, "rnn": rnn, "layered": layered, "mixed": mixed, "chain": chain}
SEEDED = {"layered", "mixed"}


def generate(family, nodes, seed=0):
    """A graph of about that many nodes."""
    build = FAMILIES[family]
    make = (lambda size: build(size, seed)) if family in SEEDED else build
    # Growth is linear but for the first few layers.
    few, more = (len(make(size).nodes) for size in (6, 12))
    return make(max(1, round(6 + (nodes - few) * 6 / (more - few))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("nodes", type=int)
    parser.add_argument("output", metavar="OUT.onnx")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(save(generate(args.family, args.nodes, args.seed), args.output), "nodes")


if __name__ == "__main__":
    main()
