"""The JSON of a visit: what each item found. It is written after every item, so a cut loses one at most."""

from __future__ import annotations

import datetime
import json
import threading
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic

Json = dict[str, Any]
SCHEMA_VERSION = 1


class Document:
    """Hold the results by the keys of their items, such as `times/small/rope/compiled`.

    A result is a JSON object. That of an item that failed has the key `failure` with the reason, and that of
    one that cannot be measured here has `unavailable`.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        """Read what an earlier call has left in the file; `again` drops what failed there."""
        self.path = path
        self._lock = threading.Lock()
        self.content: Json = {"schema_version": SCHEMA_VERSION, "items": {}, "left_out": []}
        if path.is_file():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            if self.content.get("schema_version") != SCHEMA_VERSION:
                raise SystemExit(f"check_gpu: {path} has another format; name another file with --json")
        if again:
            items = self.content["items"]
            self.content["items"] = {key: item for key, item in items.items() if "failure" not in item}

    @property
    def items(self) -> dict[str, Json]:
        """Return the results by key."""
        items: dict[str, Json] = self.content["items"]
        return items

    def set_machine(self, machine: Json) -> None:
        """Note where the visit is. Ends the program if an earlier call was on another GPU."""
        earlier = self.content.get("machine")
        if earlier is not None and earlier["device_name"] != machine["device_name"]:
            names = f"{earlier['device_name']}, this is {machine['device_name']}"
            raise SystemExit(f"check_gpu: {self.path} is of {names}; name another file with --json")
        now = datetime.datetime.now(datetime.UTC)
        self.content.setdefault("date", now.isoformat(timespec="seconds"))
        self.content["machine"] = machine
        self._write()

    def add(self, key: str, result: Json) -> None:
        """Take in the result of an item, and write the file."""
        with self._lock:
            self.items[key] = result
            self._write()

    def set_left_out(self, keys: list[str]) -> None:
        """Note the items for which there was no time, and write the file."""
        with self._lock:
            self.content["left_out"] = keys
            self._write()

    def _write(self) -> None:
        write_json_atomic(self.path, self.content)
