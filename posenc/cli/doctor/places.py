"""Where things are kept: caches, runs, the disk, git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posenc.cli.doctor.finding import Finding, size

LEAST_FREE = 200e6  # bytes: a run of the smallest model has 20 MB of checkpoints, its corpus 16 MB of tokens
LITTLE_FREE = 5e9
MOST_FILES = 20_000  # counted for the size of a cache


def caches() -> Iterator[Finding]:
    """posenc's own cache, and the hub's."""
    from posenc.core.paths import cache_dir

    own = cache_dir()
    named = "POSENC_CACHE" if os.environ.get("POSENC_CACHE") else "POSENC_CACHE moves it"
    text = f"{own}, {_held(own)} ({named})"
    if reason := _not_writable(own):
        yield Finding("cache", "problem", f"{text}: {reason}", "POSENC_CACHE=FOLDER that can be written")
    else:
        yield Finding("cache", "ok", text)
    hub = Path(os.environ.get("HF_HOME") or _cache_home() / "huggingface")
    reason = _not_writable(hub)
    level, advice = ("note", "HF_HOME=FOLDER that can be written") if reason else ("ok", None)
    told = f"{hub}, {_held(hub)}" + (f": {reason}" if reason else "")
    yield Finding("hub's cache", level, told, advice)  # type: ignore[arg-type]


def _cache_home() -> Path:
    """Where the hub's library has its cache, unless HF_HOME names it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def runs() -> Iterator[Finding]:
    """The default `runs_dir`, from here: can it be written, is there room?"""
    from posenc.config.conf_text import settings_of
    from posenc.core.paths import conf_dir

    named = next(one.value for one in settings_of(conf_dir() / "train.yaml") if one.key == "runs_dir")
    place = Path(named).absolute()
    if reason := _not_writable(place):
        yield Finding("runs_dir", "problem", f"{place}: {reason}", "runs_dir=FOLDER that can be written")
    else:
        yield Finding("runs_dir", "ok", f"{place}, {_held(place)}")
    free = shutil.disk_usage(_existing(place)).free
    if free < LEAST_FREE:
        yield Finding(
            "disk", "problem", f"{size(free)} free", "make room, or runs_dir=FOLDER on another disk"
        )
    elif free < LITTLE_FREE:
        yield Finding("disk", "note", f"{size(free)} free", "enough for small models only")
    else:
        yield Finding("disk", "ok", f"{size(free)} free")


def git() -> Iterator[Finding]:
    """Only so that runs can name the commit of a clone."""
    found = shutil.which("git")
    if found is None:
        yield Finding("git", "note", "not there", "only needed so that runs name the commit of a clone")
        return
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=5).stdout.strip()
    yield Finding("git", "ok", said.removeprefix("git version "))


def _existing(place: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    return next(one for one in (place, *place.parents) if one.exists())


def _not_writable(place: Path) -> str | None:
    """Why no file can be made there; None where one can. Leaves nothing behind."""
    there = _existing(place)
    if not there.is_dir():
        return f"{there} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def _held(place: Path) -> str:
    """How much is in it."""
    if not place.is_dir():
        return "not there yet"
    total = files = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 (a hundred thousand of them)
            except OSError:
                continue
            files += 1
        if files > MOST_FILES:
            return f"more than {size(total)}"
    return size(total)
