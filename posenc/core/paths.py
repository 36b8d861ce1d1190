"""Find posenc's YAML files, its cache, and the files that a user names."""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import shlex
from pathlib import Path
from typing import Any

import platformdirs

from posenc.core.entry_points import entry_points
from posenc.core.errors import UserError, first_line, nearest, suggestion, visible

CONF_ENTRY_POINTS = "posenc.conf"
LONGEST_PART = 255  # bytes of a name in a folder, on every common file system
LONGEST_PATH = 3500  # bytes; Linux takes 4095, and posenc adds names of its own
REASONS = {
    errno.ENAMETOOLONG: "is too long for the name of a file",
    errno.ELOOP: "is a link that leads back to itself",
    errno.EACCES: "cannot be reached: a folder above it may not be entered",
}


def conf_dir() -> Path:
    """Return posenc's YAML tree: inside the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "conf"
    return shipped if shipped.is_dir() else package.parent / "conf"


def conf_dirs() -> list[Path]:
    """Return posenc's YAML tree, then those of packages (entry points `posenc.conf`), importing none."""
    trees = [conf_dir()]
    for point in sorted(entry_points(CONF_ENTRY_POINTS), key=lambda point: point.name):
        package, *subfolders = point.value.split(".")
        # To find a package imports nothing of it, and a tree of YAML files must not run its code.
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        folders = [Path(root, *subfolders) for root in spec.submodule_search_locations or []]
        trees += [folder for folder in folders if folder.is_dir()]
    return trees


def choice_files(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """Return the YAML files of a group by name. posenc's own replace a package's, and these the user's."""
    trees = conf_dirs()
    if config_dir:
        trees.append(Path(config_dir))
    files: dict[str, Path] = {}
    for tree in reversed(trees):  # later ones replace earlier ones
        files |= {path.stem: path for path in (tree / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def choice_file(group: str, name: object, config_dir: str | None = None) -> Path | None:
    """Return the YAML file of a choice such as `encoding=rope`, or None; `name` may be anything."""
    if not isinstance(name, str):
        return None
    return choice_files(group, config_dir).get(name)


@functools.cache
def load_yaml(path: Path) -> dict[str, Any]:
    """Return what one of posenc's YAML files holds. It is read once, so the result must not be changed."""
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def mapping_in(path: Path, key: str, value: object) -> dict[Any, Any]:
    """Return the mapping that a YAML file holds, {} for a file of comments alone.

    The file may be anybody's. Raises UserError about `key=value`, whose file it is.
    """
    import yaml

    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:  # text that is not UTF-8 is a ValueError
        raise UserError(key, value, f"{visible(path)} cannot be read: {first_line(error)}") from error
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise UserError(key, value, f"{visible(path)} holds no settings: KEY: VALUE")
    return mapping


def refuse_taken_names(folder: Path) -> None:
    """Raise UserError for a user's YAML file that has the name of one of posenc's: Hydra would ignore it."""
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        for tree in conf_dirs():
            shipped = tree / name
            # An equal copy does no harm: which of the two Hydra reads makes no difference.
            if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
                problem = f"{visible(name)} has the name of one that is there, which would be used"
                hint = f"give yours another name: {visible(name.with_stem(f'my_{name.stem}'))}"
                raise UserError("--config-dir", str(folder), problem, hint=hint)


def expanded(path: str | Path) -> Path:
    """Return the path with a leading `~` expanded, or unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's raises for an unknown user)


def absolute_path(path: str) -> str:
    """Return a path as settings are stored: with `~` expanded and absolute, the same from every folder."""
    return str(expanded(path).absolute())


def named_path(name: str | Path) -> Path:
    """Return the path that a user names, with `~` expanded, and without quotes around the whole name."""
    # quotes arrive from shells that do not know them and in copied lines, but a file's name may have them
    text = str(name)
    is_quoted = len(text) > 2 and text[0] in "'\"" and text[0] == text[-1]
    if is_quoted and not exists(text):
        text = text[1:-1]
    return expanded(text)


# --- Is it there?
#
# pathlib's own questions (`exists`, `is_file`, `is_dir`) raise for a name that is too long, and for a folder
# that may not be entered. A user may type both, so every path that comes from outside is asked about here.
# Such a path leads to nothing.


def exists(path: str | Path) -> bool:
    """Tell whether a path leads to anything."""
    return os.path.exists(expanded(path))  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    """Tell whether a path leads to a file."""
    return os.path.isfile(expanded(path))  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Tell whether a path leads to a folder."""
    return os.path.isdir(expanded(path))  # noqa: PTH112


def missing_path(
    key: str, path: str | Path, kind: str = "file or folder", *, allowed: str = "", hint: str = ""
) -> UserError:
    """Return the error for a path that leads to nothing of this kind; it suggests the nearest name."""
    close = nearest_beside(path, folders_only=kind == "folder")
    hints = ["" if close is None else suggestion(visible(close)), hint]
    text = "\n".join(line for line in hints if line)
    return UserError(key, path, why_missing(path, kind), allowed=allowed, hint=text)


def nearest_beside(path: str | Path, *, folders_only: bool = False) -> str | None:
    """Return what is called nearly as a path that does not exist, in the same folder; None without any."""
    named = expanded(path)
    if not named.name or os.path.lexists(named) or not is_folder(named.parent):
        return None
    try:
        siblings = [
            entry.name for entry in os.scandir(named.parent) if not folders_only or is_folder(entry.path)
        ]
    except OSError:  # it cannot be listed
        return None
    close = nearest(named.name, siblings)
    # `Path` would drop the `./` by which a file is told from a name.
    return None if close is None else os.path.join(os.path.dirname(path), close)  # noqa: PTH118, PTH120


def why_missing(path: str | Path, kind: str = "file or folder") -> str:
    """Return why a path leads to nothing of this kind: `there is no such folder`."""
    impossible = why_impossible(path)
    if impossible is not None:
        return impossible
    try:
        expanded(path).stat()
    except OSError as error:
        return REASONS.get(error.errno or 0, f"there is no such {kind}")
    return f"is not a {kind}"


def why_impossible(path: str | Path) -> str | None:
    """Return why no file system can hold a path; None for a path that could exist."""
    # The functions of the system end a text at NUL, and Python raises ValueError, which is no OSError, before
    # it asks.
    if "\0" in str(path):
        return "holds a NUL byte, which no path can"
    # In bytes, which is what file systems count: a letter may take four of them.
    parts = [part.encode("utf-8", "surrogatepass") for part in expanded(path).absolute().parts]
    lengths = [len(part) for part in parts]
    if max(lengths) > LONGEST_PART or sum(lengths) > LONGEST_PATH:
        return "is too long for the name of a file"
    return None


def looks_local(name: str) -> bool:
    """Tell whether a name is meant as a path on this machine, and not as a name on the hub (`owner/name`)."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or why_impossible(name) is not None


def refuse_impossible(key: str, path: str | Path) -> None:
    """Raise UserError for a path that no file system can hold."""
    impossible = why_impossible(path)
    if impossible is not None:
        raise UserError(key, visible(path), impossible)


def output_file(option: str, name: str | Path) -> Path:
    """Return the path of a file to write, with links followed. Raises UserError."""
    path = expanded(name)
    refuse_impossible(option, path)
    # Files are written under another name and renamed, which would replace a link and leave its target.
    file = Path(os.path.realpath(path))
    if exists(file) and not is_file(file):
        raise UserError(option, visible(name), "is not a regular file; name a file")
    if not is_folder(file.parent):
        folder = visible(path.parent)
        raise UserError(
            option, visible(name), f"there is no folder {folder}", hint=f"mkdir -p {shlex.quote(folder)}"
        )
    return file


def cache_dir() -> Path:
    """Return the folder of tokens and tokenizers, shared by all projects; POSENC_CACHE moves it."""
    folder = os.environ.get("POSENC_CACHE")
    return expanded(folder) if folder else Path(platformdirs.user_cache_dir("posenc"))
