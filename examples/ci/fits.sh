#!/bin/sh
# Fails where a training graph stops fitting the memory of the machines that it trains on; nothing is written.
#
#     sh examples/ci/fits.sh training_model.onnx 8GiB --dim batch=32
#
# In a job of a CI, after `pip install .` in the folder of ckpt-opt:
#
#     - run: sh examples/ci/fits.sh training_model.onnx 8GiB --dim batch=32
set -u
model=$1 budget=$2
shift 2
"${CKPT_OPT:-ckpt-opt}" "$model" --budget "$budget" "$@" --dry-run --quiet
status=$?
if [ $status = 3 ]; then
    echo "$model no longer fits $budget" >&2
fi
exit $status
