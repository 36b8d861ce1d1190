"""Run posenc commands in forks of one process that has imported the large libraries once.

Started by trees.py with the interpreter and the PYTHONPATH of a tree. Each line on stdin is a JSON request
{"words": [...], "cwd": ..., "stdout": FILE, "stderr": FILE}; each line on stdout is an exit code. posenc
itself is imported anew by every fork. `import torch` alone takes 2.4 s of the 3.4 s of a command that only
says what was wrong; speed.py measures commands that start as a user's do.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

LIBRARIES = (
    *("numpy", "torch", "hydra.main", "omegaconf", "typer", "rich.console", "rich.table", "pydantic"),
    *("yaml", "orjson", "safetensors.torch", "tokenizers", "psutil", "loky", "filelock"),
)


def run_here(request: dict[str, object]) -> None:
    """Become the command: its folder, its streams, its arguments. Ends the process."""
    os.setsid()
    os.chdir(str(request["cwd"]))
    write_only = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(str(request["stdout"]), write_only), 1)
    os.dup2(os.open(str(request["stderr"]), write_only), 2)
    sys.argv = ["posenc", *map(str, request["words"])]
    from posenc.cli import main

    main()


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run_here(request)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
