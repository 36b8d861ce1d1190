"""Name the states of a run: those that status.json holds, and those that reading it adds."""

from __future__ import annotations

from typing import Final

# In status.json.
RUNNING: Final = "running"
FINISHED: Final = "finished"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
DIVERGED: Final = "diverged"

# Of a run whose status.json is not what its writer meant it to say.
DEAD: Final = "dead"  # its process is gone, and left no final status
DAMAGED: Final = "damaged"
UNKNOWN_STATE: Final = "unknown"

# In the order in which they are counted.
STATES: Final = (FINISHED, RUNNING, INTERRUPTED, FAILED, DIVERGED, DEAD, DAMAGED, UNKNOWN_STATE)
RESUMABLE: Final = (DEAD, INTERRUPTED, FAILED)  # by the same command
