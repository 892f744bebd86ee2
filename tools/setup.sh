#!/bin/sh
# Makes .venv in the project's folder with the packages of tools/requirements.txt, once: later calls
# return at once. Several at a time are fine, the first one works and the others wait.
# Prints the path of the environment's Python.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
stamp=$venv/requirements.txt
wanted=$root/tools/requirements.txt

ready() {
    cmp -s "$wanted" "$stamp" && "$venv/bin/python" -c 'import sys' 2>/dev/null
}

fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))' >/dev/null 2>&1
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
            echo "tools/setup.sh: needs Python 3.8 to 3.11 with its venv module (Debian: python3-venv); set PYTHON=/path/to/one" >&2
            exit 1
        }
    fi
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2
    cp "$wanted" "$stamp"
fi
echo "$venv/bin/python"
