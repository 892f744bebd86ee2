#!/bin/sh
# The way of somebody who comes with nothing: an empty folder, the package by pip, a bundled graph within a budget, its
# report in a browser, and two training steps.
#     sh tools/stranger.sh FOLDER
# FOLDER is made. MALLOC_COUNTER is the malloc counter's library. The last line is what tools/check_model.py --json says.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?expected the folder to make}
mkdir "$folder"
cd "$folder"

"$("$root/tools/setup.sh")" -m venv venv
PATH=$folder/venv/bin:$PATH
pip install --quiet --disable-pip-version-check -r "$root/tools/requirements.txt" >&2
pip install --quiet --disable-pip-version-check "$root" >&2
cp "$root/testdata/models/triplet.onnx" training_model.onnx

python - <<'END'
import ckpt_opt

result = ckpt_opt.optimize("training_model.onnx", "small.onnx", budget="fixed+60%", dims={"batch": 16})
print(result)
with open("report.html", "w", encoding="utf-8") as page:
    page.write(result.html())
END
ckpt-opt verify training_model.onnx small.onnx --dim batch=16

python "$root/tools/check_page.py" report.html --browser "$("$root/tools/setup.sh" browser)"
python "$root/tools/train.py" training_model.onnx small.onnx --dim batch=16 --steps 2
python "$root/tools/check_model.py" training_model.onnx small.onnx --dim batch=16 --json | tr -d '\n'
