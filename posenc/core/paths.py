"""Find posenc's YAML files, its cache, and the files that a user names."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import entry_points
from pathlib import Path

import platformdirs

from posenc.core.errors import UserError, visible

CONF_ENTRY_POINTS = "posenc.conf"


def conf_dir() -> Path:
    """Return posenc's YAML tree: inside the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "conf"
    return shipped if shipped.is_dir() else package.parent / "conf"


def conf_dirs() -> list[Path]:
    """Return posenc's YAML tree, then those of packages (entry points `posenc.conf`); imports none."""
    found = [conf_dir()]
    for point in sorted(entry_points(group=CONF_ENTRY_POINTS), key=lambda point: point.name):
        top, *inner = point.value.split(".")
        spec = importlib.util.find_spec(top)
        for root in (spec.submodule_search_locations or []) if spec else []:
            if (folder := Path(root, *inner)).is_dir():
                found.append(folder)
    return found


def choice_files(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """Return the YAML files of a group by name; posenc's win over a package's, these over the user's."""
    places = [*conf_dirs(), *([Path(config_dir)] if config_dir else [])]
    found = {path.stem: path for place in reversed(places) for path in (place / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def choice_file(group: str, name: object, config_dir: str | None = None) -> Path | None:
    """Return the YAML file of a choice such as `encoding=rope`, or None; `name` may be anything."""
    return choice_files(group, config_dir).get(name) if isinstance(name, str) else None


def refuse_taken_names(folder: Path) -> None:
    """Raise UserError for a user's YAML file with the name of one of posenc's: Hydra would ignore it."""
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        for taken in (place / name for place in conf_dirs()):
            if taken.is_file() and taken.read_bytes() != path.read_bytes():
                problem = f"{visible(name)} has the name of one that is there, which would be used"
                hint = f"give yours another name: {visible(name.with_stem(f'my_{name.stem}'))}"
                raise UserError("--config-dir", str(folder), problem, hint=hint)


def expanded(given: str) -> Path:
    """Return the path with a leading `~` expanded; as it is if there is no such user."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 (Path's raises for an unknown user)


def is_folder(given: str) -> bool:
    """Tell whether this names a folder; text too long for a name is none."""
    return os.path.isdir(expanded(given))  # noqa: PTH112 (is_dir raises for names too long)


def output_file(option: str, given: str | Path) -> Path:
    """Return where a file that the user names is to be written, links followed. Raises UserError."""
    path = expanded(str(given))
    place = Path(os.path.realpath(path))
    if os.path.exists(place) and not place.is_file():  # noqa: PTH110 (exists raises for names too long)
        raise UserError(option, visible(given), "is not a regular file; name a file")
    if not place.parent.is_dir():
        folder = visible(path.parent)
        raise UserError(option, visible(given), f"there is no folder {folder}", hint=f"mkdir -p {folder}")
    return place


def cache_dir() -> Path:
    """Return the folder of tokens and tokenizers, shared by all projects; POSENC_CACHE moves it."""
    named = os.environ.get("POSENC_CACHE")
    return expanded(named) if named else Path(platformdirs.user_cache_dir("posenc"))
