"""Which checkpoints there are, and whether one is what was written: every bit of every file."""

from __future__ import annotations

import errno
import json
import math
import re
import stat
from pathlib import Path

from posenc.core.atomic_files import sha256_of_file
from posenc.core.errors import RunError

LARGEST = 1_000_000  # bytes of a manifest or a state
DAMAGED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO)


def checkpoint_paths(folder: Path) -> list[Path]:
    """Checkpoints by number, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-\d{8,}", p.name) and not p.is_symlink()]
    return sorted(found, key=number_of)


def number_of(path: Path) -> int:
    """The step in its name."""
    return int(path.name.removeprefix("step-"))


def problem_of(path: Path) -> str | None:
    """Why this checkpoint cannot be trusted, or None.

    Raises RunError where it cannot be read now (too many open files, a network disk away): that is no damage.
    """
    try:
        manifest = json.loads(_small(path / "manifest.json"))
        missing = {"model.safetensors", "optimizer.safetensors", "state.json"} - manifest.keys()
        if missing:
            return f"{min(missing)} is not in its manifest"
        extra = {file.name for file in path.iterdir()} - {"manifest.json"} - manifest.keys()
        if extra & {"tokenizer.json"}:
            return "tokenizer.json is not in its manifest"
        text = _small(path / "state.json")  # first: what is no state need not be hashed
        for name, digest in manifest.items():
            if Path(name).name != name:
                return f"{name} does not belong in a checkpoint"
            if sha256_of_file(_regular(path / name)) != digest:
                return f"{name} differs from its sha256"
        state = json.loads(text)
        numbers = [state[key] for key in ("step", "tokens", "seconds")]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            return "state.json lacks its numbers"
        if state["step"] != number_of(path):
            return f"it is of step {state['step']}"
    except OSError as error:
        if error.errno not in DAMAGED:
            problem = f"cannot read {error.filename or path}: {error.strerror}"
            raise RunError(problem, hint="nothing was changed; the same command tries again") from error
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _regular(path: Path) -> Path:
    """The same path. Raises ValueError for a link, a folder or what never ends."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is no file")
    return path


def _small(path: Path) -> bytes:
    """The bytes of a regular file. Raises ValueError where it is too large for a list of names or numbers."""
    if _regular(path).stat().st_size > LARGEST:
        raise ValueError(f"{path.name} is too large")
    return path.read_bytes()
