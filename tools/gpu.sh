#!/bin/sh
# Measures on this machine's GPU what plans promise, and what their parts cost: the tables of docs/gpu.md.
#
# usage: sh run.sh [DEVICE]   the GPU, as ckpt-opt calls it (h100)
#
# `cargo xtask gpu` packs this with the program, the scripts and the graphs. Needs Python 3 (PYTHON=... names one) with onnxruntime-gpu,
# CUDA's libraries as that wants them, numpy and onnx. Results stand in results/ as well.
set -eu
cd "$(dirname "$0")"
device=${1:-h100} python=${PYTHON:-python3}
mkdir -p results

"$python" tools/gpu_barriers.py | tee results/barriers.md
"$python" tools/gpu_in_place.py > results/in_place.json

./ckpt-opt lower models/resnet18.onnx results/resnet18.onnx
./ckpt-opt conv-table results/resnet18.onnx --runtime stock --device "$device" --dim batch=64 > results/convolutions-predicted.json
"$python" tools/gpu_convolutions.py results/convolutions-predicted.json > results/convolutions.json

"$python" tools/truth_table.py --binary ./ckpt-opt --models models --runtime stock --python "$python" --device "$device" --session usual \
    --settings lean --budgets fixed+60% fixed+40% --times --json results/truth.jsonl | tee results/truth.md
