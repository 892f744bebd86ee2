"""`python -m ckpt_opt`, and the command `ckpt-opt` that comes with the package."""

import os
import sys

from . import _ckpt_opt


def main() -> None:
    status = _ckpt_opt.main(["ckpt-opt", *sys.argv[1:]])
    # Signals are the command's own by now: nothing of the interpreter is left to do.
    os._exit(status)


if __name__ == "__main__":
    main()
