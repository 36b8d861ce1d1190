"""List the corpora that can be chosen, by their YAML files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from posenc.core.errors import UserError, visible
from posenc.core.paths import choice_files, mapping_in
from posenc.data.corpus import known_figures
from posenc.data.sources import MISSING, is_streamed, pinned_identity
from posenc.settings.errors import user_error
from posenc.settings.tree import DataSettings

# The first line of a corpus's YAML: `# what it is (licence; size)`.
ABOUT = re.compile(r"#\s*(.+?)\s*(?:\(([^()]*);([^();]*)\)\s*)?")


@dataclass(frozen=True)
class ListedCorpus:
    """A choice of `data`."""

    name: str
    description: str
    licence: str
    size: str
    network: bool  # whether it is read over the network
    cached: bool  # whether it has been read before, and is in the cache


def list_corpora() -> Iterator[ListedCorpus | UserError]:
    """Yield every choice of `data`, in the order of their names.

    In the place of one whose file cannot be used stands the error: it may be of an installed package, and
    must not hide the others.
    """
    for name, path in choice_files("data").items():
        try:
            yield _listed(name, path)
        except UserError as error:
            if error.key == "data":  # the error of a file that cannot be read, which it names
                yield error
            else:
                problem = f"{visible(path)} has {error.key}: {error.problem}"
                yield UserError("data", name, problem)


def _listed(name: str, path: Path) -> ListedCorpus:
    """Return the entry of a corpus, from its YAML file. Raises UserError for one that cannot be used."""
    settings = mapping_in(path, "data", name)
    first_line = path.read_text(encoding="utf-8").split("\n", 1)[0]
    about = ABOUT.fullmatch(first_line)
    description, licence, size = about.groups("") if about else ("", "", "")
    try:
        data = DataSettings.model_validate(settings)
    except ValidationError as error:
        raise user_error(error, DataSettings, "data") from error
    comes_from_the_hub = is_streamed(data)
    is_open = MISSING in data.parameters.values()  # the user has to say which data set it is
    pinned = None
    # Without a repository and a commit there is nothing that could be in the cache.
    if comes_from_the_hub and not is_open:
        pinned = pinned_identity(data)
    return ListedCorpus(
        name=name,
        description=description,
        licence=licence.strip(),
        size=size.strip(),
        network=comes_from_the_hub,
        cached=known_figures(pinned) is not None,
    )
