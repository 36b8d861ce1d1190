"""posenc: how positional encodings extrapolate in length."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = (
    False  # as type checkers know it: typing takes as long to import as all else up to the command
)
if TYPE_CHECKING:
    from typing import Any

    from posenc.api.jobs import evaluate, train
    from posenc.api.loaded_run import load
    from posenc.api.runs import load_runs
    from posenc.core.errors import RunError, UserError

__version__ = "0.2.0"
__all__ = ["RunError", "UserError", "evaluate", "load", "load_runs", "train"]

# imported when first asked for: `import posenc` takes no torch, and `posenc --help` comes through here
_HOMES = {
    "train": "posenc.api.jobs",
    "evaluate": "posenc.api.jobs",
    "load": "posenc.api.loaded_run",
    "load_runs": "posenc.api.runs",
    "RunError": "posenc.core.errors",
    "UserError": "posenc.core.errors",
}


def __getattr__(name: str) -> Any:
    if name == "nn":  # a module, as in `posenc.nn.Attention`
        return import_module("posenc.nn")
    if name not in _HOMES:
        raise AttributeError(f"module 'posenc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "nn"]
