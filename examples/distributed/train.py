"""Data-parallel training: every process plans its graph for its part of the batch, and gradients are averaged between steps.

    torchrun --nproc_per_node 2 examples/distributed/train.py                        # ORTModule's own graph
    torchrun --nproc_per_node 2 examples/distributed/train.py --budget fixed+60%     # within a budget

Both print the same losses. Needs torch, onnxruntime-training with ORTModule's extension, and ckpt-opt.
"""

import argparse

import onnxruntime
import torch
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from torch import distributed, nn

import ckpt_opt.ortmodule


def network():
    def layer(channels):
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(4, channels), nn.ReLU())

    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), layer(32), layer(32), layer(32), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="of each process; without it nothing is rewritten")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    onnxruntime.set_seed(0)

    module = ORTModule(network(), DebugOptions(log_level=LogLevel.ERROR))
    if args.budget:
        rewriting = ckpt_opt.ortmodule.rewrite(module, args.budget)
    model = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(1)
    for _ in range(args.steps):
        images = torch.randn((8 * ranks, 3, 32, 32), generator=random)[rank::ranks]
        loss = nn.functional.cross_entropy(model(images), (images.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank}: loss {loss.item()!r}", flush=True)
    if args.budget:
        print(f"rank {rank}: {rewriting.result!r}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
