"""What a tracker was given of a run, kept in the run directory: a resumed run goes on where it was."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.tracking.guard import reason

logger = logging.getLogger(__name__)


@dataclass
class Memory:
    """`tracking/<tracker>.json` of a run directory. Where it cannot be written, tracking goes on without."""

    file: Path
    id: str  # the tracked run's own
    group: str | None  # the first one it had: an evaluation later does not move it
    step: int = -1  # the last training step that was given
    sent: set[str] = field(default_factory=set)  # the cells that were given
    row: int = -1  # the last row, for a tracker that counts rows by itself
    known: bool = False  # there was such a file

    def reached(self, step: int) -> None:
        """Steps up to this one were given."""
        self.step = step
        self.save()

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """These cells were given."""
        self.sent.update(map(cell_key, records))
        self.save()

    def save(self) -> None:
        """Write it whole. Not synced: after a power cut a few points may come twice."""
        data: dict[str, Any] = {"id": self.id, "group": self.group, "step": self.step, "row": self.row}
        data["sent"] = sorted(self.sent)
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(data) + "\n", encoding="utf-8")
            temporary.replace(self.file)
        except OSError as error:
            logger.debug("%s is not kept: %s", self.file, reason(error))


def recall(directory: Path, tracker: str, group: str | None) -> Memory:
    """What was given of this run directory before; a new identity, and this group, where nothing was.

    An id made from the directory's hash would be the same for everybody who trains the same thing, and again
    after the directory is deleted: two runs in one.
    """
    file = directory / "tracking" / f"{tracker}.json"
    memory = Memory(file, secrets.token_hex(6), group)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if re.fullmatch(r"[a-z0-9]{8,64}", kept["id"]):
            memory = Memory(
                file,
                kept["id"],
                None if kept["group"] is None else str(kept["group"]),
                int(kept["step"]),
                {str(key) for key in kept["sent"]},
                int(kept["row"]),
                known=True,
            )
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return memory


def cell_key(record: Mapping[str, Any]) -> str:
    """What tells one measurement from another, on whatever targets."""
    extend = json.dumps(record.get("extend"), sort_keys=True, default=str)
    names = ("protocol", "window", "stride", "targets_hash", "checkpoint_step", "nats")
    return "|".join([*(str(record.get(name)) for name in names), extend])
