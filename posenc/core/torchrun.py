"""Tell what torchrun says of this process, in its environment variables.

This module imports next to nothing, since the handler of the first signals uses it.
"""

from __future__ import annotations

import os


def is_another_process() -> bool:
    """Tell whether torchrun started this process, and another process is the first, which speaks for all."""
    # Some schedulers and shells set RANK alone. Such a process is the only
    # one of its run, and nobody would speak for it.
    is_single = os.environ.get("WORLD_SIZE", "1") == "1"
    return not is_single and os.environ.get("RANK", "0") != "0"
