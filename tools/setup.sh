#!/bin/sh
# Makes .venv in the project's folder with the packages of tools/requirements.txt, once: later calls
# return at once. Several at a time are fine, the first one works and the others wait.
# With the argument stock the same for .venv-stock, which has a runtime without training; with stock 1.20.1 for
# .venv-stock-1.20.1, which has another release of it.
# With the argument ray for .venv-ray, which has Ray; with torch for .venv-torch, which has PyTorch beside the runtime (5 GB).
# Prints the path of the environment's Python.
# With the argument browser or cmake it finds such a program, installed by apt-get unless there is one, and prints its path.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

# The first of the programs that there is; otherwise the one of Debian's package.
program() {
    package=$1
    for candidate in "$@" ""; do
        if [ -z "$candidate" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; } >&2
            candidate=$package
        fi
        if [ -n "$candidate" ] && command -v "$candidate"; then
            exit 0
        fi
    done
    echo "tools/setup.sh: needs $package, on the PATH (Debian: apt-get install $package)" >&2
    exit 1
}

case "${1:-}" in
    browser) program chromium chromium-browser google-chrome chrome ;;
    cmake) program cmake ;;
esac
case "${1:-}" in
    "") venv=$root/.venv wanted=$root/tools/requirements.txt oldest=8 ;;
    stock) venv=$root/.venv-stock wanted=$root/tools/requirements-stock.txt oldest=11 ;;
    ray) venv=$root/.venv-ray wanted=$root/tools/requirements-ray.txt oldest=9 ;;
    torch) venv=$root/.venv-torch wanted=$root/tools/requirements-torch.txt oldest=8 ;;
    *) echo "tools/setup.sh: expected no argument, stock, ray, torch, browser or cmake, found $1" >&2; exit 2 ;;
esac
if [ "${1:-}" = stock ] && [ -n "${2:-}" ]; then
    venv=$venv-$2
    mkdir -p "$root/target"
    # Whole at once: who compares a half of it would make the environment anew, while others use it.
    made=$root/target/requirements-stock-$2.txt
    sed "s/^onnxruntime==.*/onnxruntime==$2/" "$wanted" >"$made.$$"
    mv "$made.$$" "$made"
    wanted=$made
fi
stamp=$venv/requirements.txt

ready() {
    cmp -s "$wanted" "$stamp" && "$venv/bin/python" -c 'import sys' 2>/dev/null
}

fits() {
    "$1" -c "import sys, venv, ensurepip; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, 11))" >/dev/null 2>&1
}

find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3.10 python3.9 python3.8 python3; do
        if [ -n "$candidate" ] && fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

if ! ready; then
    mkdir -p "$root/target"
    if command -v flock >/dev/null; then
        exec 9>"$root/target/venv.lock"
        flock 9
    fi
fi
if ! ready; then
    if ! python=$(find_python); then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            # Standard output carries the result alone.
            { apt-get update -qq && apt-get install -y -qq python3 python3-venv; } >&2
        fi
        python=$(find_python) || {
            echo "tools/setup.sh: needs Python 3.$oldest to 3.11 with its venv module (Debian: python3-venv); set PYTHON=/path/to/one" >&2
            exit 1
        }
    fi
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2
    cp "$wanted" "$stamp"
fi
echo "$venv/bin/python"
