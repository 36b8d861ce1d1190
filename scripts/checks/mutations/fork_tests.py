"""Run pytest in forks of one process that has imported the large libraries once.

Started by run.py in a copy of a tree, with its PYTHONPATH. Each line on stdin is a JSON request
{"arguments": [...], "output": FILE, "seconds": N}; each line on stdout is pytest's exit code, or that of the
signal that ended it after so many seconds. posenc and the tests are imported anew by every fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

LIBRARIES = (
    *("numpy", "torch", "torch.nn.functional", "scipy.special", "sympy", "pandas", "tokenizers", "datasets"),
    *("hydra.main", "omegaconf", "yaml", "ruamel.yaml", "typer", "rich.console", "rich.table", "pydantic"),
    *("orjson", "safetensors.torch", "psutil", "loky", "filelock", "vl_convert", "jinja2", "pytest"),
    *("transformers", "hypothesis"),
)


def run_here(request: dict[str, object]) -> None:
    """Become pytest with the arguments and the output of a request. Ends the process."""
    import pytest

    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    exit_code = pytest.main([str(argument) for argument in arguments])
    sys.stdout.flush()
    os._exit(int(exit_code))


def wait_for(child: int, seconds: int) -> int:
    """Return the exit code of a process, which is killed with all it has started after so many seconds."""
    signal.signal(signal.SIGALRM, lambda number, frame: os.killpg(child, signal.SIGKILL))
    signal.alarm(seconds)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run_here(request)
        print(wait_for(child, request["seconds"]), flush=True)


if __name__ == "__main__":
    main()
