"""Define the command line: `commands` has the commands, `entry` begins and ends a process."""

from __future__ import annotations

from posenc.core.first_signals import leave_at_signals

TYPE_CHECKING = False  # see posenc/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from posenc.cli.commands import app

__all__ = ["app", "main"]


def main(command: str | None = None) -> None:
    """Run the console script and exit. train.py and eval.py of a clone name the command to put in front."""
    # The signals come first: the other imports take half a second or
    # more, and Ctrl-C would print a traceback.
    leave_at_signals()
    from posenc.cli.entry import run  # imports all commands, which takes a while

    run(command)


# `posenc.cli.app` is for tests and tools. Imported at the top, it would come before the signals.
def __getattr__(name: str) -> Any:
    if name == "app":
        from posenc.cli.commands import app

        return app
    raise AttributeError(f"module 'posenc.cli' has no attribute {name!r}")
