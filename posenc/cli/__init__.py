"""The command line: `commands` is what there is, `entry` is how a process begins and ends."""

from posenc.cli.commands import app
from posenc.cli.entry import main

__all__ = ["app", "main"]
