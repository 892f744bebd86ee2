"""Trains with PyTorch's ORTModule, once with the training graph that it makes and once with that graph rewritten by the
package's hook for it.

Usage: train_ortmodule.py [--network transformer|convolutions] [--budget SIZE] [--steps N]

Needs the package (`pip install .`), what `tools/setup.sh torch` installs, and ORTModule's extension, by
`python -m onnxruntime.training.ortmodule.torch_cpp_extensions.install` (a C++ compiler; four minutes). `cargo xtask pytorch`
does all that and runs it.

Both runs have the same parameters and batches, one thread, and plain gradient descent. Prints JSON: the losses, whether
losses and trained parameters and statistics are equal to the bit, and, with the malloc counter preloaded, the peak of the
last step, PyTorch's tensors included. Exit status 1 if they are not equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

BATCH = {"transformer": (8, 128), "convolutions": (8, 3, 64, 64)}
RATE = 0.01


def transformer(torch):
    """A language model of four blocks, and its loss. Tokens are (batch, positions)."""
    nn = torch.nn
    width, heads, words, positions = 128, 4, 512, BATCH["transformer"][1]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            y = self.before(x)
            split = [part(y).view(-1, positions, heads, width // heads).transpose(1, 2)
                     for part in (self.query, self.key, self.value)]
            scores = torch.softmax(split[0] @ split[1].transpose(2, 3) / (width // heads) ** 0.5, -1)
            x = x + self.drop(self.out((scores @ split[2]).transpose(1, 2).reshape(-1, positions, width)))
            return x + self.drop(self.narrow(nn.functional.gelu(self.wide(self.behind(x)))))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(positions, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(4)))
            self.last = nn.Linear(width, words)

        def forward(self, tokens):
            guesses = self.last(self.blocks(self.words(tokens) + self.places))
            return nn.functional.cross_entropy(guesses.view(-1, words), tokens.roll(-1, 1).view(-1))

    return Network(), lambda: torch.randint(0, words, BATCH["transformer"])


def convolutions(torch):
    """A residual network of four blocks, and its loss. Images are (batch, channels, height, width)."""
    nn = torch.nn

    def layer(channels):
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 32, 3, padding=1)
            self.blocks = nn.ModuleList(nn.Sequential(layer(32), layer(32)) for _ in range(4))
            self.last = nn.Linear(32, 10)

        def forward(self, images):
            x = self.first(images)
            for block in self.blocks:
                x = x + block(x)
            guesses = self.last(x.mean((2, 3)))
            return nn.functional.cross_entropy(guesses, (images.mean((1, 2, 3)) > 0).long())

    return Network(), lambda: torch.randn(BATCH["convolutions"])


def watch_sessions(manager):
    """Has every TrainingAgent made use one thread and no arena, which would hide what a step takes. Returns the set of
    graphs that they were made for."""
    make, asked = manager.TrainingAgent, set()

    def agent(graph, names, devices, results, returned, options, *others):
        asked.add(graph)
        options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        return make(graph, names, devices, results, returned, options, *others)

    manager.TrainingAgent = agent
    return asked


def train(args):
    """Trains, and writes what came of it to `args.result`."""
    import onnxruntime
    import torch
    from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule, _training_manager

    from counters import MallocCounter

    asked = watch_sessions(_training_manager)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    onnxruntime.set_seed(0)
    network, batch = {"transformer": transformer, "convolutions": convolutions}[args.network](torch)
    module = ORTModule(network, DebugOptions(log_level=LogLevel.ERROR))
    if args.rewrite:
        import ckpt_opt.ortmodule

        rewriting = ckpt_opt.ortmodule.rewrite(module, args.budget)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    counter, losses = MallocCounter(), []

    def step():
        loss = module(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    for _ in range(args.steps):
        inputs = batch()
        peak = counter.during(step)
    # The one that was rewritten, and not PyTorch alone.
    if len(asked) != 1:
        sys.exit(f"ORTModule was to execute one graph, and executed {len(asked)}")
    said = rewriting.result.figures if args.rewrite else {}
    trained = {name: value.numpy() for name, value in network.state_dict().items()}
    np.savez(args.result, losses=np.array(losses), peak=np.array(-1 if peak is None else peak),
             said=np.array(json.dumps(said)), **trained)


def run(args, folder, name, *options):
    result = os.path.join(folder, name + ".npz")
    command = [sys.executable, os.path.abspath(__file__), "--network", args.network, "--steps", str(args.steps),
               "--budget", args.budget, "--result", result, *options]
    # Where something fails ORTModule would go on with PyTorch alone.
    environment = dict(os.environ, ORTMODULE_FALLBACK_POLICY="FALLBACK_DISABLE")
    if args.malloc_counter:
        environment["LD_PRELOAD"] = args.malloc_counter
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    return np.load(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(BATCH), default="transformer")
    parser.add_argument("--budget", default="fixed+50%")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--malloc-counter", metavar="LIBRARY", default=os.environ.get("MALLOC_COUNTER"))
    parser.add_argument("--rewrite", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        train(args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        before, after = run(args, folder, "before"), run(args, folder, "after", "--rewrite")
        said = json.loads(str(after["said"]))
        arrays = [name for name in before.files if name not in ("peak", "said")]
        different = [name for name in arrays if before[name].tobytes() != after[name].tobytes()]
        print(json.dumps({
            "losses": before["losses"].tolist(),
            "arrays": len(arrays),
            "different": different,
            "peak_before": int(before["peak"]),
            "peak_after": int(after["peak"]),
            "predicted_before": said["peak_before_bytes"] - said["fixed_bytes"],
            "predicted_after": said["peak_after_bytes"] - said["fixed_bytes"],
            "recomputed_nodes": said["recomputed_nodes"],
        }, indent=2))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
