"""Python and the packages: what is installed, what posenc asks for, what it was tested with."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from posenc.cli.doctor.finding import Finding

ROOT = Path(__file__).resolve().parents[3]  # of a clone
NOT_FOR_USERS = ("test", "dev", "docs")


def python() -> Iterator[Finding]:
    """The interpreter."""
    wanted = metadata("posenc")["Requires-Python"] or ""
    text = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable}), {_system()}"
    if _fits(platform.python_version(), wanted):
        yield Finding("Python", "ok", text)
    else:
        yield Finding(
            "Python", "problem", f"{text}; posenc asks for {wanted}", "make the venv with a newer one"
        )


def packages() -> Iterator[Finding]:
    """Every dependency; then the extras of which something is missing."""
    from packaging.requirements import Requirement

    tested = constraints()
    extras: dict[str, list[str]] = {}
    for text, extra in requirements():
        requirement = Requirement(text)
        if extra is not None:
            extras.setdefault(extra, []).append(requirement.name)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        yield _package(requirement.name, str(requirement.specifier), tested.get(_key(requirement.name)))
    for extra_name, names in sorted(extras.items()):
        if extra_name in NOT_FOR_USERS:
            continue
        missing = [name for name in names if name != "posenc" and _installed(name) is None]
        told = ", ".join(f"{name} {_installed(name)}" for name in names if _installed(name))
        if missing:
            advice = f"if you want it: pip install 'posenc[{extra_name}]'"
            yield Finding(f"extra {extra_name}", "note", f"not installed: {', '.join(missing)}", advice)
        else:
            yield Finding(f"extra {extra_name}", "ok", told)


def requirements() -> list[tuple[str, str | None]]:
    """What posenc asks for, with the extra that it is for: of a clone from its pyproject.toml, as what was
    noted when it was installed may be older.
    """
    path = ROOT / "pyproject.toml"
    if path.is_file():
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).items()
        return [(text, None) for text in project["dependencies"]] + [
            (text, extra) for extra, texts in extras for text in texts
        ]
    found = []
    for text in requires("posenc") or []:
        extra = re.search(r"extra *== *['\"]([\w-]+)['\"]", text)
        found.append((text, extra[1] if extra else None))
    return found


def constraints() -> dict[str, str]:
    """The versions that posenc was tested with, by name; {} where there is no clone to read them from."""
    path = ROOT / "constraints.txt"
    if not path.is_file():
        return {}
    pairs = (line.split("==") for line in path.read_text(encoding="utf-8").splitlines() if "==" in line)
    return {_key(name): number.strip() for name, number in pairs if not name.startswith("#")}


def _package(name: str, wanted: str, tested: str | None) -> Finding:
    have = _installed(name)
    told = f"asked for {wanted or 'any'}" + (f", tested {tested}" if tested else "")
    if have is None:
        pip = f"{sys.executable} -m pip install '{name}{wanted}'"
        return Finding(name, "problem", f"not installed; {told}", pip)
    if not _fits(have, wanted):
        pip = f"{sys.executable} -m pip install '{name}{wanted}'"
        return Finding(name, "note", f"{have}; {told}", f"it may not work: {pip}")
    return Finding(name, "ok", f"{have}; {told}")


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


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"
